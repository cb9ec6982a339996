// All ways to ask libtorch for gradients are the same when replayed. See replay_test.h.
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

namespace nn = torch::nn;

TEST(ReplayAutograd, BackwardFillsGradientsThatTheStepReads) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
        return Subject{net.ptr(), [net](const Tensors& in) mutable {
                         net->zero_grad();
                         at::Tensor loss = torch::mse_loss(net->forward(in[0]), in[1]);
                         loss.backward();
                         Tensors results{loss.detach()};
                         torch::NoGradGuard no_gradients;
                         for (at::Tensor& parameter : net->parameters()) {
                           parameter.sub_(parameter.grad() * 0.1);
                           results.push_back(parameter.grad().clone());
                         }
                         return results;
                       }};
      },
      [] { return Tensors{torch::randn({5, 4}), torch::randn({5, 2})}; });
}

TEST(ReplayAutograd, BackwardTwiceAddsTheGradientsUp) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        return Subject{net.ptr(), [net](const Tensors& in) mutable {
                         net->zero_grad();
                         at::Tensor out = net->forward(in[0]);
                         out.square().sum().backward({}, /*retain_graph=*/true);
                         net->weight.grad().mul_(0.5);  // in place, between the two
                         out.sum().backward();
                         net->forward(in[0] * 2).abs().sum().backward();
                         torch::NoGradGuard no_gradients;
                         net->weight.sub_(net->weight.grad(), 0.1);
                         return Tensors{net->weight.grad(), net->bias.grad()};
                       }};
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, TheSgdOfLibtorchUpdatesVariables) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        auto sgd =
            std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.01));
        return Subject{net.ptr(), [net, sgd](const Tensors& in) mutable {
                         sgd->zero_grad();
                         at::Tensor loss = net->forward(in[0]).square().sum();
                         loss.backward();
                         sgd->step();
                         return Tensors{loss.detach()};
                       }};
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, ClippingTheNormOfGradientsIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor loss = net->forward(in[0]).square().sum();
          Tensors gradients = torch::autograd::grad({loss}, net->parameters(), {}, /*retain_graph=*/true);
          at::Tensor norm = torch::stack({gradients[0].norm(), gradients[1].norm()}).norm();
          at::Tensor factor = (1.0 / (norm + 1e-6)).clamp_max(1.0);
          return Tensors{loss, norm, gradients[0] * factor};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, GradientsByArgumentsAndIntermediateResultsAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor x = in[0].detach().clone().requires_grad_();
          at::Tensor middle = net->forward(x);
          at::Tensor out = middle.sigmoid();
          Tensors by = torch::autograd::grad({out, middle}, {x, middle}, {torch::ones_like(out), in[1]},
                                             /*retain_graph=*/true);
          return Tensors{out.sum(), by[0], by[1]};
        });
      },
      [] { return Tensors{torch::randn({5, 4}), torch::randn({5, 2})}; });
}

TEST(ReplayAutograd, ArgumentsThatNeedGradientsGetThem) {
  expect_replay_equals_eager(
      [] {
        return plain([](const Tensors& in) {
          at::Tensor x = in[0].detach().requires_grad_();
          (x.sin() * x.exp()).sum().backward();
          return Tensors{x.grad()};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, DoubleBackwardIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 1));
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor x = in[0].detach().clone().requires_grad_();
          at::Tensor out = net->forward(x);
          at::Tensor slope = torch::autograd::grad({out.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
          at::Tensor penalty = (slope.norm(2, 1) - 1).square().mean();  // as a WGAN has it
          // The last bias has no part in the slope.
          return Tensors{penalty + out.mean(), slope};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, DoubleBackwardThroughConvolutionAndNormIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(2, 3, 3), nn::BatchNorm2d(3), nn::Softplus(), nn::AvgPool2d(2), nn::Flatten(),
                           nn::Linear(12, 1));
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor loss = net->forward(in[0]).square().sum();
          Tensors first = torch::autograd::grad({loss}, net->parameters(), {}, true, /*create_graph=*/true);
          at::Tensor length = torch::zeros({});
          for (const at::Tensor& gradient : first) length = length + gradient.square().sum();
          return Tensors{loss + 0.01 * length, length};
        });
      },
      [] { return Tensors{torch::randn({3, 2, 6, 6})}; });
}

TEST(ReplayAutograd, ThirdDerivativesAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        return plain([](const Tensors& in) {
          at::Tensor x = in[0].detach().clone().requires_grad_();
          Tensors derivatives{x.pow(5).sin()};
          for (int i = 0; i < 3; ++i) {
            derivatives.push_back(torch::autograd::grad({derivatives.back().sum()}, {x}, {}, true, true)[0]);
          }
          return derivatives;
        });
      },
      [] { return Tensors{torch::randn({7})}; });
}

// x³ with a gradient of its own, which keeps a tensor and a number.
struct Cube : public torch::autograd::Function<Cube> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double scale) {
    context->save_for_backward({x});
    context->saved_data["scale"] = scale;
    return x * x * x * scale;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x * context->saved_data["scale"].toDouble(), at::Tensor()};
  }
};

// Rounds, and lets the gradient through as if it did not.
struct StraightThrough : public torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.round(); }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& gradients) { return {gradients[0]}; }
};

TEST(ReplayAutograd, OwnAutogradFunctionsAreThoseOfTheUser) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor cubed = Cube::apply(net->forward(in[0]), 0.5);
          at::Tensor rounded = StraightThrough::apply(cubed * 3);
          return Tensors{(cubed + rounded * in[1]).sum(), cubed, rounded};
        });
      },
      [] { return Tensors{torch::randn({5, 4}), torch::randn({5, 2})}; });
}

TEST(ReplayAutograd, HooksOnTensorsRunWhileTracing) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 2);
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor out = net->forward(in[0]);
          out.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
          return Tensors{out.square().sum()};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, DetachedAndFrozenPartsGetNoGradients) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 3}));
        at::Tensor frozen = holder->buffer("frozen", torch::randn({3, 3}));
        return training(holder, [=](const Tensors& in) {
          at::Tensor x = torch::matmul(in[0], w);
          at::Tensor target;
          {
            torch::NoGradGuard no_gradients;
            target = torch::matmul(x, frozen);
          }
          return Tensors{(x - target).square().sum() + (x.detach() * x).sum(), target};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

TEST(ReplayAutograd, GradientsThroughInPlaceOpsAndViewsAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 6}));
        return training(holder, [=](const Tensors& in) {
          at::Tensor x = w * in[0];
          x.slice(1, 0, 3).mul_(x.slice(1, 3, 6).clone());
          x[1].add_(w[2]);
          x.t()[4].copy_(w.sum(1));
          at::Tensor y = torch::zeros({4, 6});
          y.select(0, 2).copy_(x[0]);
          y.index_put_({torch::tensor({0, 1}, torch::kLong)}, x.slice(0, 2, 4));
          return Tensors{(x.square() + y).sum(), x, y};
        });
      },
      [] { return Tensors{torch::randn({4, 6})}; });
}

TEST(ReplayAutograd, RecomputedPartsAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear net(4, 4);
        return training(net, [net](const Tensors& in) mutable {
          // By hand what checkpointing does: run a part again, with gradients, and pull through it.
          at::Tensor middle = net->forward(in[0]);
          at::Tensor out;
          {
            torch::NoGradGuard no_gradients;
            out = net->forward(middle).tanh();
          }
          at::Tensor again = middle.detach().requires_grad_();
          at::Tensor pulled = torch::autograd::grad({net->forward(again).tanh()}, {again}, {2 * out})[0];
          return Tensors{(middle * pulled.detach()).sum(), out};
        });
      },
      [] { return Tensors{torch::randn({5, 4})}; });
}

}  // namespace
}  // namespace muster
