// Ops that read, view and write memory in other ways than layers do are the same when replayed. See replay_test.h.
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

using torch::indexing::Ellipsis;
using torch::indexing::Slice;

at::Tensor indices(std::vector<int64_t> values) { return torch::tensor(values, torch::kLong); }

TEST(ReplayOps, IndexingByTensorsAndSlicesIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({6, 5, 4}));
        return training(holder, [w](const Tensors& in) {
          const Tensors read{w.index({in[0]}),
                             w.index({in[0], Slice(), 2}),
                             w.index({Slice(1, torch::indexing::None, 2), Ellipsis, Slice(torch::indexing::None, 3)}),
                             w.index({in[0].unsqueeze(1), in[1]}),
                             w.index({torch::indexing::None, 3, in[1]}),
                             w[2],
                             w.index_select(1, in[1]),
                             w.select(2, 1).diagonal(),
                             w.take(in[0]),
                             w.flip({0, 2}),
                             w.roll(2, 1)};
          at::Tensor loss = torch::zeros({});
          for (const at::Tensor& tensor : read) loss = loss + tensor.square().sum();
          Tensors results{loss};
          results.insert(results.end(), read.begin(), read.end());
          return results;
        });
      },
      [] { return Tensors{torch::randint(6, {4}, torch::kLong), torch::randint(5, {3}, torch::kLong)}; });
}

TEST(ReplayOps, GatherAndScatterAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({5, 4}));
        return training(holder, [w](const Tensors& in) {
          const Tensors made{w.gather(0, in[0]),
                             torch::zeros({5, 4}).scatter(0, in[0], w.slice(0, 0, 3)),
                             w.scatter_add(1, in[0].slice(1, 0, 4), in[1]),
                             w.scatter_reduce(0, in[0], in[1], "amax"),
                             w.index_add(0, in[0].select(1, 0), in[1]),
                             w.index_copy(0, indices({4, 0, 2}), in[1]),
                             w.index_fill(1, indices({1, 3}), 0.25),
                             torch::zeros({5, 4}).masked_scatter(w > 0, w)};
          at::Tensor loss = torch::zeros({});
          for (const at::Tensor& tensor : made) loss = loss + tensor.square().sum();
          Tensors results{loss};
          results.insert(results.end(), made.begin(), made.end());
          return results;
        });
      },
      [] { return Tensors{torch::randint(4, {3, 4}, torch::kLong), torch::randn({3, 4})}; });
}

TEST(ReplayOps, WritingThroughIndicesIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({6, 4}));
        at::Tensor count = holder->buffer("count", torch::zeros({6}, torch::kLong));
        return training(holder, [w, count](const Tensors& in) mutable {
          at::Tensor x = w * 2;
          x.index_put_({in[0]}, in[1]);
          x.index_put_({in[0], indices({0, 3, 1})}, in[1].select(1, 2));
          x.slice(1, 0, 2).index_put_(c10::List<std::optional<at::Tensor>>({in[0]}), in[1].slice(1, 0, 2),
                                      /*accumulate=*/true);
          x.index_put_({x > 1}, 0.5);  // a mask that is written through has a fixed shape
          x.index({Slice(4, torch::indexing::None), 1}) = 7;
          x[0] = in[1][1];
          x.masked_fill_(x < -1, -1);
          count.index_add_(0, in[0], torch::ones_like(in[0]));
          return Tensors{x.square().sum(), x};
        });
      },
      [] { return Tensors{torch::randint(6, {3}, torch::kLong), torch::randn({3, 4})}; });
}

TEST(ReplayOps, ChoosingByMasksIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({6, 4}));
        return training(holder, [w](const Tensors& in) {
          const at::Tensor chosen = torch::where(w > in[0], w, in[0]);
          const at::Tensor filled = w.masked_fill(in[0] < 0, -1) + torch::where(in[0] > 0, w, 0.5);
          const auto [best, place] = w.topk(2, 1);
          const auto [sorted, order] = w.sort(0);
          return Tensors{(chosen * filled).sum() + best.sum() + (sorted * in[0]).sum() + w.clamp(-0.5, 0.5).sum() +
                             w.cumsum(1).square().sum() + std::get<0>(w.max(1)).sum() + w.tril().sum(),
                         chosen,
                         filled,
                         place,
                         order,
                         w.argmax(1),
                         w.ge(in[0])};
        });
      },
      [] { return Tensors{torch::randn({6, 4})}; });
}

TEST(ReplayOps, InPlaceOpsOnResultsArgumentsAndVariablesAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 3}));
        at::Tensor total = holder->buffer("total", torch::zeros({3}));
        at::Tensor last = holder->buffer("last", torch::zeros({4, 3}));
        return training(holder, [=](const Tensors& in) mutable {
          at::Tensor x = in[0].mul_(2);  // an argument: the caller sees it
          at::Tensor y = torch::matmul(x, w.t()).mul_(2);
          y.add_(1).mul_(in[1]).clamp_(0, 9);
          y.t().sub_(0.5);
          y.slice(1, 0, 2).zero_();
          total.mul_(0.9).add_(x.mean(0), 0.1);
          last.copy_(w.detach());
          at::Tensor z = torch::zeros({4, 4});
          z.fill_diagonal_(2).addmm_(y.t(), y).sqrt_();
          return Tensors{(y.square().sum() + z.sum()), x, y, z, total.clone()};
        });
      },
      [] { return Tensors{torch::randn({4, 3}), torch::randn({4, 4})}; });
}

// Each result has no other use, so its memory may be that of the next one, where that is of the same type and shape.
TEST(ReplayOps, ChainsOfOpsOnResultsThatNobodyElseUsesAreThoseOfLibtorch) {
  const auto make = [] {
    auto holder = std::make_shared<Holder>();
    at::Tensor w = holder->parameter("w", torch::randn({4, 3}));
    return training(holder, [=](const Tensors& in) {
      const at::Tensor &x = in[0], &row = in[1], &wide = in[2], &count = in[3];
      at::Tensor a = (((x + w) * row - 0.5) / 3).sigmoid().tanh().exp().sqrt().log().abs();
      at::Tensor b = (x * 2).neg().relu() * wide;                                         // of another shape
      at::Tensor c = (x * 3) + w.to(torch::kDouble);                                      // of another type
      at::Tensor d = (count + 1) * 0.5;                                                   // integers become floats
      at::Tensor e = (count * 2) / (count + 3);                                           // likewise
      at::Tensor f = (x + 1).transpose(-1, -2) * (x - 1).transpose(-1, -2).contiguous();  // in another order of memory
      at::Tensor g = (x + 1) * (x + 1);                                                   // the same twice
      at::Tensor sum = x.mean() * 2;
      at::Tensor h = sum * w + sum;  // a number times a matrix
      at::Tensor i = torch::addcmul(x * 1, w, row, 0.5) + torch::gelu(w * 2) + torch::silu(w * 3);
      at::Tensor j = (x + 0.25).clamp(-1, 1).clamp_min(0);
      at::Tensor loss = a.mean() + b.mean() + c.mean() + f.mean() + g.mean() + h.mean() + i.mean() + j.mean();
      return Tensors{loss, a, b, c, d, e, f, g, h, i, j};
    });
  };
  for (const int64_t rows : {4, 4 * 1024}) {  // beyond what small ops do
    SCOPED_TRACE(rows);
    expect_replay_equals_eager(make, [rows] {
      const int64_t many = rows / 4;
      at::Tensor x = torch::randn({many, 4, 3});
      if (many == 1) x = x[0].contiguous();
      return Tensors{x, torch::randn({3}), torch::randn({2, many, 4, 3}), torch::arange(6)};
    });
  }
}

TEST(ReplayOps, ResultsThatAreTheVariableItselfHaveItsLastValue) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor count = holder->buffer("count", torch::zeros({2, 2}));
        return Subject{holder, [count](const Tensors& in) mutable {
                         at::Tensor before = count.clone();
                         at::Tensor view = count.view({4});
                         count.add_(in[0]);
                         return Tensors{before, view * 1, count, count.t()};
                       }};
      },
      [] { return Tensors{torch::randn({2, 2})}; });
}

TEST(ReplayOps, ViewsShareMemoryAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 6}));
        at::Tensor b = holder->buffer("b", torch::randn({12}));
        return training(holder, [w, b](const Tensors& in) mutable {
          at::Tensor x = in[0].clone();
          x.transpose(0, 1).narrow(0, 1, 2).mul_(3);
          x.unfold(1, 3, 2).select(2, 0).add_(1);
          for (at::Tensor part : x.split(2, 1)) part.sub_(part.mean());
          for (at::Tensor part : x.chunk(2, 0)) part.select(0, 0).neg_();
          x.as_strided({2, 2}, {7, 2}, 1).fill_(0.75);
          x.view({6, 4}).t()[1].zero_();
          b.view({3, 4}).select(1, 2).add_(x[0][0]);
          const at::Tensor wide = w.unsqueeze(1).expand({4, 3, 6}) * x.unsqueeze(1);
          return Tensors{wide.permute({2, 0, 1}).reshape({6, 12}).matmul(b).sum(),
                         x,
                         wide,
                         w.t().diagonal().clone(),
                         b.view({4, 3}).movedim(0, 1).squeeze().flatten(),
                         x.unflatten(1, {2, 3})};
        });
      },
      [] { return Tensors{torch::randn({4, 6})}; });
}

TEST(ReplayOps, ComplexNumbersAndTheirViewsAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 3, 2}));
        return training(holder, [w](const Tensors& in) mutable {
          at::Tensor z = torch::view_as_complex(w) * torch::complex(in[0], in[1]);
          at::Tensor conjugated = z.conj() * c10::complex<double>(0.5, 2);
          at::Tensor copy = z.detach().clone();
          torch::real(copy).add_(1);
          torch::view_as_real(copy).select(2, 1).mul_(2);
          return Tensors{torch::view_as_real(z * conjugated).square().sum() + z.abs().sum() + torch::imag(z).sum(), z,
                         conjugated.resolve_conj(), copy, torch::angle(z)};
        });
      },
      [] { return Tensors{torch::randn({4, 3}), torch::randn({4, 3})}; });
}

TEST(ReplayOps, FourierTransformsAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({8}));
        return training(holder, [w](const Tensors& in) {
          const at::Tensor spectrum = torch::fft::rfft(in[0] * w);
          return Tensors{torch::fft::irfft(spectrum * spectrum.conj(), 8).square().sum(), spectrum};
        });
      },
      [] { return Tensors{torch::randn({3, 8})}; });
}

TEST(ReplayOps, ViewsAsAnotherTypeShareMemoryAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        return plain([](const Tensors& in) {
          at::Tensor x = in[0].clone();
          x.view(torch::kInt).bitwise_and_(0x7fffffff);  // clears the sign
          return Tensors{x, x.view(torch::kInt) + 1, x.view(torch::kShort).slice(1, 0, 4)};
        });
      },
      [] { return Tensors{torch::randn({3, 4})}; });
}

TEST(ReplayOps, OpsThatWriteToAGivenOutputAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->buffer("w", torch::randn({3, 3}));
        at::Tensor sum = holder->buffer("sum", torch::zeros({3}));
        return Subject{holder, [w, sum](const Tensors& in) mutable {
                         torch::NoGradGuard no_gradients;
                         at::Tensor product = torch::empty({3, 3});
                         torch::matmul_out(product, in[0], w);
                         at::Tensor shifted = torch::empty({0});
                         torch::add_out(shifted, product, in[0]);  // resizes its output
                         torch::sum_out(sum, shifted, 0);
                         torch::mul_out(w, w, torch::full({1}, 0.5));
                         at::Tensor values = torch::empty({0}), places = torch::empty({0}, torch::kLong);
                         torch::max_out(values, places, product, 1);
                         at::Tensor halves = torch::empty({6, 3});
                         at::Tensor upper = halves.slice(0, 0, 3), lower = halves.slice(0, 3, 6);
                         torch::sub_out(upper, in[0], w);
                         torch::cat_out(lower, {in[0].slice(0, 0, 1), w.slice(0, 1, 3)});
                         return Tensors{product, shifted, values, places, halves};
                       }};
      },
      [] { return Tensors{torch::randn({3, 3})}; });
}

TEST(ReplayOps, RandomOpsDrawTheNumbersOfTheStep) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor noise = holder->buffer("noise", torch::zeros({3, 4}));
        return Subject{holder, [noise](const Tensors& in) mutable {
                         noise.normal_(0, 0.5);
                         Tensors drawn{torch::rand({2, 3}),
                                       torch::randn({5}),
                                       torch::randn({20}, torch::kDouble),
                                       torch::randint(3, 9, {4}, torch::kLong),
                                       torch::randperm(7),
                                       torch::rand_like(in[0]),
                                       torch::randn_like(in[0]),
                                       torch::randint_like(in[0], 5),
                                       torch::bernoulli(in[0].sigmoid()),
                                       torch::bernoulli(in[0], 0.3),
                                       torch::multinomial(in[0].softmax(1), 3, true),
                                       torch::multinomial(in[0].softmax(1), 2),
                                       at::normal(in[0], 2.0),
                                       at::normal(0.0, 1.0, {2, 2}),
                                       torch::poisson(in[0].abs()),
                                       torch::dropout(in[0], 0.5, true),
                                       torch::empty({3}).uniform_(-1, 1),
                                       torch::empty({3}).exponential_(),
                                       torch::empty({3}).log_normal_(),
                                       torch::empty({3}).cauchy_(),
                                       torch::empty({3}).geometric_(0.5),
                                       torch::empty({3}, torch::kLong).random_(10),
                                       torch::empty({3, 3}).bernoulli_(0.5)};
                         return drawn;
                       }};
      },
      [] { return Tensors{torch::randn({3, 4})}; });
}

TEST(ReplayOps, TensorsMadeOfNumbersAreConstants) {
  const std::vector<float> numbers{1, 2.5, -3};
  expect_replay_equals_eager(
      [numbers] {
        return plain([numbers](const Tensors& in) {
          at::Tensor blob = torch::from_blob(const_cast<float*>(numbers.data()), {3});
          return Tensors{in[0] * torch::tensor({1.5, 2.0, 3.0}, torch::kFloat),
                         in[0] + blob.clone(),
                         in[0] + torch::arange(3),
                         in[0] - torch::linspace(0, 1, 3),
                         torch::eye(3).matmul(in[0]),
                         in[0] * 2.5 + 1,
                         torch::full({2}, 3, torch::kInt) * 2,
                         in[0].to(torch::kDouble) / 3,
                         torch::one_hot(torch::arange(3), 4),
                         torch::scalar_tensor(0.25) * in[0],
                         in[0].pow(2).pow(0.5),
                         torch::pow(2, in[0])};
        });
      },
      [] { return Tensors{torch::randn({3})}; });
}

TEST(ReplayOps, LinearAlgebraIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 4}));
        return training(holder, [w](const Tensors& in) {
          const at::Tensor positive = w.matmul(w.t()) + 4 * torch::eye(4);
          const at::Tensor root = torch::linalg_cholesky(positive);
          const at::Tensor solved = torch::linalg_solve(positive, in[0]);
          const at::Tensor mixed = torch::einsum("ij,jk,k->i", {w, in[0], in[0].select(1, 0)});
          return Tensors{root.sum() + solved.square().sum() + mixed.square().sum() +
                             std::get<1>(torch::linalg_slogdet(positive)) +
                             torch::baddbmm(in[0].unsqueeze(0), w.unsqueeze(0), w.unsqueeze(0)).sum() +
                             torch::linalg_norm(w) + torch::cdist(w, in[0]).sum(),
                         root, solved, mixed};
        });
      },
      [] { return Tensors{torch::randn({4, 4})}; });
}

TEST(ReplayOps, JoiningAndReducingIsThatOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({3, 4}));
        return training(holder, [w](const Tensors& in) {
          const at::Tensor joined = torch::cat({w, in[0], w * 2}, 0);
          const at::Tensor stacked = torch::stack({w, in[0]}, 1);
          return Tensors{joined.std() + stacked.var(1).sum() + stacked.norm() + joined.logsumexp(1).sum() +
                             joined.amax({0}).sum() + std::get<0>(joined.median(1)).sum() +
                             stacked.mean(at::IntArrayRef{0, 2}).square().sum() +
                             torch::tile(w, {2, 1}).repeat_interleave(2, 0).sum(),
                         joined,
                         stacked,
                         (joined > 0).any(1),
                         (joined > 0).sum(),
                         joined.count_nonzero(at::IntArrayRef{0}),
                         torch::bucketize(w, torch::tensor({-1.0, 0.0, 1.0}, torch::kFloat))};
        });
      },
      [] { return Tensors{torch::randn({3, 4})}; });
}

TEST(ReplayOps, HalfPrecisionAndIntegersAreThoseOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({3, 4}).to(torch::kBFloat16));
        return training(holder, [w](const Tensors& in) {
          const at::Tensor x = torch::matmul(in[0].to(torch::kBFloat16), w.t());
          return Tensors{x.square().sum(),           x,
                         in[0].to(torch::kHalf) * 2, in[0].to(torch::kInt) / 2,
                         in[0].to(torch::kByte) % 3, in[0].to(torch::kInt).bitwise_left_shift(1),
                         (in[0] > 0) & (in[0] < 2)};
        });
      },
      [] { return Tensors{torch::rand({3, 4}) * 5}; });
}

// ---- Many tensors at once
Subject momentum(const std::function<void(Tensors& parameters, const Tensors& gradients, Tensors& momenta)>& update) {
  auto holder = std::make_shared<Holder>();
  Tensors parameters, momenta;
  for (int i = 0; i < 3; ++i) {
    parameters.push_back(holder->parameter("p" + std::to_string(i), torch::randn({4, i + 1})));
    momenta.push_back(holder->buffer("m" + std::to_string(i), torch::zeros({4, i + 1})));
  }
  return {holder, [=](const Tensors& in) mutable {
            at::Tensor loss = torch::zeros({});
            for (const at::Tensor& parameter : parameters) loss = loss + torch::matmul(in[0], parameter).square().sum();
            const Tensors gradients = torch::autograd::grad({loss}, parameters);
            torch::NoGradGuard no_gradients;
            update(parameters, gradients, momenta);
            return Tensors{loss};
          }};
}

Tensors rows() { return {torch::randn({5, 4}) * 0.1}; }

TEST(ReplayOps, ShapesThatChangeInPlaceAreThoseOfOneTensor) {
  expect_replay_equals_eager(
      [] {
        return plain([](const Tensors& in) -> Tensors {
          const at::Tensor turned = in[0].detach(), longer = in[0].detach(), shorter = in[1].detach();
          turned.t_();
          longer.unsqueeze_(0).transpose_(0, 2);
          shorter.squeeze_();
          return {in[0] + 0, turned + 0, in[0].t() * 2, longer + 1, shorter + 1, in[1] + 1};
        });
      },
      [] { return Tensors{torch::rand({2, 3}), torch::rand({1, 3, 1})}; });
}

TEST(ReplayOps, ForeachOpsUpdateVariablesAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        return momentum([](Tensors& parameters, const Tensors& gradients, Tensors& momenta) {
          at::_foreach_mul_(momenta, 0.9);
          at::_foreach_add_(momenta, gradients);
          const Tensors scaled = at::_foreach_div(momenta, std::vector<at::Scalar>{1.0, 2.0, 3.0});
          const Tensors lengths = at::_foreach_norm(gradients);
          at::_foreach_addcmul_(parameters, scaled, gradients, -0.01);
          at::_foreach_addcdiv_(parameters, scaled, at::_foreach_add(at::_foreach_sqrt(at::_foreach_abs(momenta)), 1.0),
                                -0.1);
          at::_foreach_lerp_(parameters, at::_foreach_neg(parameters), 0.01);
          at::_foreach_mul_(parameters, at::_foreach_reciprocal(at::_foreach_clamp_min(lengths, 1.0))[0]);
        });
      },
      rows);
}

TEST(ReplayOps, TheFusedSgdUpdatesVariablesAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        return momentum([](Tensors& parameters, const Tensors& gradients, Tensors& momenta) {
          at::_fused_sgd_(parameters, gradients, momenta, /*weight_decay=*/0.01, /*momentum=*/0.9, /*lr=*/0.1,
                          /*dampening=*/0.0, /*nesterov=*/true, /*maximize=*/false, /*is_first_step=*/false);
        });
      },
      rows);
}

TEST(ReplayOps, TheFusedAdamUpdatesVariablesAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        Tensors parameters, means, squares, steps;
        for (int i = 0; i < 3; ++i) {
          const std::string number = std::to_string(i);
          parameters.push_back(holder->parameter("p" + number, torch::randn({4, i + 1})));
          means.push_back(holder->buffer("m" + number, torch::zeros({4, i + 1})));
          squares.push_back(holder->buffer("s" + number, torch::zeros({4, i + 1})));
          steps.push_back(holder->buffer("t" + number, torch::zeros({})));
        }
        return Subject{holder, [=](const Tensors& in) mutable {
                         at::Tensor loss = torch::zeros({});
                         for (const at::Tensor& p : parameters) loss = loss + torch::matmul(in[0], p).square().sum();
                         const Tensors gradients = torch::autograd::grad({loss}, parameters);
                         torch::NoGradGuard no_gradients;
                         for (at::Tensor& step : steps) step.add_(1);
                         at::_fused_adam_(parameters, gradients, means, squares, {}, steps, 0.01, 0.9, 0.999, 0.01,
                                          1e-8, false, false);
                         at::_fused_adamw_(parameters, gradients, means, squares, {}, steps, 0.01, 0.9, 0.999, 0.01,
                                           1e-8, false, false);
                         at::_fused_adagrad_(parameters, gradients, squares, steps, 0.01, 0.1, 0.0, 1e-8, false);
                         return Tensors{loss};
                       }};
      },
      rows);
}

}  // namespace
}  // namespace muster
