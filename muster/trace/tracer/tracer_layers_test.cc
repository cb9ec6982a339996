// The layers of torch::nn train the same when replayed. See replay_test.h for what is compared.
#include <ATen/autocast_mode.h>

#include "muster/trace/replay_test.h"

namespace muster {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

TEST(ReplayLayers, LinearLayersTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Linear(6, 16), nn::ReLU(), nn::Linear(nn::LinearOptions(16, 8).bias(false)), nn::GELU(),
                           nn::Linear(8, 3));
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor out = net->forward(in[0]);
          return Tensors{torch::mse_loss(out, in[1]), out};
        });
      },
      [] { return Tensors{torch::randn({5, 6}), torch::randn({5, 3})}; });
}

TEST(ReplayLayers, BilinearLayersTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Bilinear net(4, 5, 3);
        return training(
            net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0], in[1]).square().sum()}; });
      },
      [] { return Tensors{torch::randn({6, 4}), torch::randn({6, 5})}; });
}

TEST(ReplayLayers, ConvolutionsOverOneDimensionTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv1d(nn::Conv1dOptions(3, 8, 3).padding(1)), nn::ReLU(),
                           nn::Conv1d(nn::Conv1dOptions(8, 4, 3).stride(2).dilation(2)));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).square().mean()}; });
      },
      [] { return Tensors{torch::randn({2, 3, 16})}; });
}

TEST(ReplayLayers, ConvolutionsOverTwoDimensionsTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::ReLU(),
                           nn::Conv2d(nn::Conv2dOptions(8, 6, 3).stride(2).bias(false)), nn::Flatten(),
                           nn::Linear(54, 4));
        return training(
            net, [net](const Tensors& in) mutable { return Tensors{F::cross_entropy(net->forward(in[0]), in[1])}; });
      },
      [] { return Tensors{torch::randn({4, 3, 8, 8}), torch::randint(4, {4}, torch::kLong)}; });
}

TEST(ReplayLayers, GroupedAndDepthwiseConvolutionsTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(4, 8, 3).groups(2)),
                           nn::Conv2d(nn::Conv2dOptions(8, 8, 3).groups(8).padding(1)));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).abs().sum()}; });
      },
      [] { return Tensors{torch::randn({2, 4, 7, 7})}; });
}

TEST(ReplayLayers, TransposedConvolutionsTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3).stride(2).output_padding(1)),
                           nn::Tanh(), nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 2, 2).groups(2)));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).square().mean()}; });
      },
      [] { return Tensors{torch::randn({2, 4, 5, 5})}; });
}

TEST(ReplayLayers, ConvolutionsOverThreeDimensionsTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv3d(2, 3, 2), nn::ReLU(), nn::MaxPool3d(2));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).sum()}; });
      },
      [] { return Tensors{torch::randn({2, 2, 5, 5, 5})}; });
}

TEST(ReplayLayers, PoolingGivesTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Conv2d conv(2, 4, 3);
        return training(conv, [conv](const Tensors& in) mutable {
          const at::Tensor x = conv->forward(in[0]);
          const Tensors pooled{
              torch::max_pool2d(x, 2),
              torch::max_pool2d(x, 3, 2, 1),
              torch::avg_pool2d(x, 2, 1, 1, false, false),
              torch::adaptive_avg_pool2d(x, {3, 2}),
              torch::adaptive_avg_pool2d(x, {1, 1}),
              std::get<0>(torch::adaptive_max_pool2d(x, {2, 3})),
              F::lp_pool2d(x.abs() + 0.1, F::LPPool2dFuncOptions(2, 2)),
          };
          at::Tensor loss = torch::zeros({});
          for (const at::Tensor& p : pooled) loss = loss + p.square().sum();
          return Tensors{loss};
        });
      },
      [] { return Tensors{torch::randn({2, 2, 10, 8})}; });
}

TEST(ReplayLayers, BatchNormInTrainingUpdatesItsStatisticsAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(), nn::Linear(64, 5),
                           nn::BatchNorm1d(nn::BatchNorm1dOptions(5).momentum(0.3)));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).square().mean()}; });
      },
      [] { return Tensors{torch::randn({6, 3, 6, 6})}; });
}

TEST(ReplayLayers, BatchNormInEvaluationUsesItsStatistics) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Sigmoid());
        net->eval();
        {
          torch::NoGradGuard no_gradients;
          for (at::Tensor buffer : net->buffers()) {
            if (buffer.is_floating_point()) buffer.uniform_(0.5, 1.5);
          }
        }
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).square().mean()}; });
      },
      [] { return Tensors{torch::randn({6, 4})}; });
}

TEST(ReplayLayers, LayerGroupAndInstanceNormTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(3, 4, 3), nn::GroupNorm(2, 4),
                           nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
                           nn::LayerNorm(nn::LayerNormOptions({4, 4, 4})), nn::LocalResponseNorm(2));
        return training(net, [net](const Tensors& in) mutable { return Tensors{net->forward(in[0]).pow(3).sum()}; });
      },
      [] { return Tensors{torch::randn({2, 3, 6, 6})}; });
}

TEST(ReplayLayers, DropoutDrawsTheNumbersOfTheStep) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Linear(8, 32), nn::Dropout(0.3), nn::Linear(32, 16), nn::AlphaDropout(0.2),
                           nn::Unflatten(nn::UnflattenOptions(1, {4, 2, 2})), nn::Dropout2d(0.5), nn::Flatten(),
                           nn::FeatureAlphaDropout(0.4));
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor out = net->forward(in[0]);
          return Tensors{out.square().mean(), out};
        });
      },
      [] { return Tensors{torch::randn({6, 8})}; });
}

TEST(ReplayLayers, EmbeddingsTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        nn::Embedding table(nn::EmbeddingOptions(20, 6).padding_idx(0));
        nn::EmbeddingBag sums(nn::EmbeddingBagOptions(20, 6).mode(torch::kSum));
        nn::EmbeddingBag means(nn::EmbeddingBagOptions(20, 6).mode(torch::kMean));
        nn::EmbeddingBag maxima(nn::EmbeddingBagOptions(20, 6).mode(torch::kMax));
        holder->register_module("table", table);
        holder->register_module("sums", sums);
        holder->register_module("means", means);
        holder->register_module("maxima", maxima);
        return training(holder, [=](const Tensors& in) mutable {
          const at::Tensor each = table->forward(in[0]);
          const at::Tensor bags = sums->forward(in[0]) + means->forward(in[0]) * maxima->forward(in[0]);
          const at::Tensor ragged = means->forward(in[0].flatten(), in[1]);
          return Tensors{each.square().sum() + bags.square().sum() + ragged.sum(), each, bags, ragged};
        });
      },
      [] { return Tensors{torch::randint(20, {4, 5}, torch::kLong), torch::tensor({0, 3, 11}, torch::kLong)}; });
}

TEST(ReplayLayers, ScaledDotProductAttentionTrainsAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({8, 24}));
        return training(holder, [w](const Tensors& in) {
          auto qkv = torch::matmul(in[0], w).reshape({2, 5, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
          at::Tensor whole = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
          at::Tensor causal = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
          at::Tensor masked = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], in[1]);
          return Tensors{(whole + causal * masked).square().sum(), whole, causal, masked};
        });
      },
      [] { return Tensors{torch::randn({2, 5, 8}), torch::randn({5, 5})}; });
}

TEST(ReplayLayers, AttentionWithDropoutDrawsTheNumbersOfTheStep) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        at::Tensor w = holder->parameter("w", torch::randn({4, 4}));
        return training(holder, [w](const Tensors& in) {
          at::Tensor q = torch::matmul(in[0], w);
          return Tensors{torch::scaled_dot_product_attention(q, in[0], in[0], {}, 0.3).square().sum()};
        });
      },
      [] { return Tensors{torch::randn({2, 2, 6, 4})}; });
}

TEST(ReplayLayers, MultiheadAttentionTrainsAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1));
        return training(attention, [attention](const Tensors& in) mutable {
          auto [out, weights] = attention->forward(in[0], in[1], in[1]);
          return Tensors{out.square().sum() + weights.sum(), out, weights};
        });
      },
      [] { return Tensors{torch::randn({5, 2, 8}), torch::randn({6, 2, 8})}; });
}

TEST(ReplayLayers, TransformersTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Transformer net(nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(16).dropout(0.1));
        return training(net, [net](const Tensors& in) mutable {
          const at::Tensor mask = nn::TransformerImpl::generate_square_subsequent_mask(4);
          return Tensors{net->forward(in[0], in[1], {}, mask).square().mean()};
        });
      },
      [] { return Tensors{torch::randn({5, 2, 8}), torch::randn({4, 2, 8})}; });
}

// A recurrent layer that returns its outputs and its last state.
template <class Layer>
Subject recurrent(Layer layer) {
  return training(layer, [layer](const Tensors& in) mutable {
    Tensors results{at::Tensor()};
    auto [out, state] = layer->forward(in[0]);
    results.push_back(out);
    if constexpr (std::is_same_v<decltype(state), at::Tensor>) {
      results.push_back(state);
    } else {
      results.insert(results.end(), {std::get<0>(state), std::get<1>(state)});
    }
    results[0] = torch::zeros({});
    for (size_t i = 1; i < results.size(); ++i) results[0] = results[0] + results[i].square().sum();
    return results;
  });
}

Tensors sequences() { return {torch::randn({6, 3, 5})}; }

TEST(ReplayLayers, AnLstmOfOneLayerTrainsAsInLibtorch) {
  expect_replay_equals_eager([] { return recurrent(nn::LSTM(5, 4)); }, sequences);
}

TEST(ReplayLayers, AnLstmOfTwoLayersBothWaysWithDropoutTrainsAsInLibtorch) {
  expect_replay_equals_eager(
      [] { return recurrent(nn::LSTM(nn::LSTMOptions(5, 4).num_layers(2).bidirectional(true).dropout(0.2))); },
      sequences);
}

TEST(ReplayLayers, AnLstmWithProjectionTrainsAsInLibtorch) {
  expect_replay_equals_eager([] { return recurrent(nn::LSTM(nn::LSTMOptions(5, 4).proj_size(2).batch_first(true))); },
                             sequences);
}

TEST(ReplayLayers, AnLstmWithoutGradientsRunsAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::LSTM net(nn::LSTMOptions(5, 4).num_layers(2));
        return Subject{net.ptr(), [net](const Tensors& in) mutable {
                         torch::NoGradGuard no_gradients;
                         auto [out, state] = net->forward(in[0]);
                         return Tensors{out, std::get<0>(state), std::get<1>(state)};
                       }};
      },
      sequences);
}

TEST(ReplayLayers, AGruOfOneLayerTrainsAsInLibtorch) {
  expect_replay_equals_eager([] { return recurrent(nn::GRU(5, 4)); }, sequences);
}

TEST(ReplayLayers, AGruOfTwoLayersBothWaysTrainsAsInLibtorch) {
  expect_replay_equals_eager([] { return recurrent(nn::GRU(nn::GRUOptions(5, 4).num_layers(2).bidirectional(true))); },
                             sequences);
}

TEST(ReplayLayers, ASimpleRecurrentLayerTrainsAsInLibtorch) {
  expect_replay_equals_eager([] { return recurrent(nn::RNN(nn::RNNOptions(5, 4).nonlinearity(torch::kReLU))); },
                             sequences);
}

TEST(ReplayLayers, RecurrentCellsUnrolledInCppTrainAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        auto holder = std::make_shared<Holder>();
        nn::LSTMCell lstm(5, 4);
        nn::GRUCell gru(4, 4);
        holder->register_module("lstm", lstm);
        holder->register_module("gru", gru);
        return training(holder, [=](const Tensors& in) mutable {
          std::tuple<at::Tensor, at::Tensor> state{torch::zeros({3, 4}), torch::zeros({3, 4})};
          at::Tensor hidden = torch::zeros({3, 4});
          for (const at::Tensor& x : in[0].unbind(0)) {
            state = lstm->forward(x, state);
            hidden = gru->forward(std::get<0>(state), hidden);
          }
          return Tensors{hidden.square().sum(), hidden};
        });
      },
      sequences);
}

TEST(ReplayLayers, PackedSequencesRunAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::GRU net(5, 4);
        return training(net, [net](const Tensors& in) mutable {
          auto packed = nn::utils::rnn::pack_padded_sequence(in[0], torch::tensor({6, 4, 1}, torch::kLong));
          auto [out, state] = net->forward_with_packed_input(packed);
          return Tensors{out.data().square().sum() + state.sum(), out.data(), state};
        });
      },
      sequences);
}

TEST(ReplayLayers, ActivationsHaveTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear linear(6, 6);
        return training(linear, [linear](const Tensors& in) mutable {
          const at::Tensor x = linear->forward(in[0]);
          const Tensors activated{torch::relu(x),
                                  torch::sigmoid(x),
                                  torch::tanh(x),
                                  torch::gelu(x),
                                  torch::gelu(x, "tanh"),
                                  torch::silu(x),
                                  torch::mish(x),
                                  torch::elu(x),
                                  torch::selu(x),
                                  torch::celu(x, 0.7),
                                  torch::leaky_relu(x),
                                  torch::softplus(x),
                                  torch::hardtanh(x),
                                  torch::hardswish(x),
                                  torch::hardsigmoid(x),
                                  torch::log_sigmoid(x),
                                  torch::relu6(x),
                                  torch::glu(x, 1).repeat({1, 2}),
                                  torch::softmax(x, 1),
                                  torch::log_softmax(x, 1),
                                  torch::prelu(x, torch::full({1}, 0.2)),
                                  torch::rrelu(x, 0.1, 0.3, /*training=*/true)};
          at::Tensor loss = torch::zeros({});
          for (const at::Tensor& a : activated) loss = loss + a.square().sum();
          return Tensors{loss};
        });
      },
      [] { return Tensors{torch::randn({5, 6})}; });
}

TEST(ReplayLayers, LossesOverClassesHaveTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear linear(6, 4);
        return training(linear, [linear](const Tensors& in) mutable {
          const at::Tensor x = linear->forward(in[0]);
          const Tensors losses{
              F::cross_entropy(x, in[1]),
              F::cross_entropy(x, in[1], F::CrossEntropyFuncOptions().label_smoothing(0.1)),
              F::cross_entropy(x, in[1], F::CrossEntropyFuncOptions().weight(torch::arange(1, 5).to(torch::kFloat))),
              F::cross_entropy(x, in[2].softmax(1)),
              F::nll_loss(torch::log_softmax(x, 1), in[1]),
              F::nll_loss(torch::log_softmax(x, 1), in[1],
                          F::NLLLossFuncOptions().ignore_index(2).reduction(torch::kSum)),
              F::multi_margin_loss(x, in[1]),
              F::multilabel_soft_margin_loss(x, (in[2] > 0).to(torch::kFloat)),
              F::binary_cross_entropy_with_logits(x, in[2].sigmoid()),
              F::binary_cross_entropy_with_logits(
                  x, in[2].sigmoid(), F::BinaryCrossEntropyWithLogitsFuncOptions().pos_weight(torch::full({4}, 2.0))),
              F::binary_cross_entropy(x.sigmoid(), in[2].sigmoid()),
              F::soft_margin_loss(x, in[2].sign()),
          };
          Tensors results{torch::stack(losses).sum()};
          results.insert(results.end(), losses.begin(), losses.end());
          return results;
        });
      },
      [] { return Tensors{torch::randn({5, 6}), torch::randint(4, {5}, torch::kLong), torch::randn({5, 4})}; });
}

TEST(ReplayLayers, LossesOverValuesHaveTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear linear(6, 4);
        return training(linear, [linear](const Tensors& in) mutable {
          const at::Tensor x = linear->forward(in[0]);
          const at::Tensor y = in[1];
          const at::Tensor sides = torch::ones({5});
          const Tensors losses{
              F::mse_loss(x, y),
              F::l1_loss(x, y),
              F::smooth_l1_loss(x, y),
              F::huber_loss(x, y),
              F::kl_div(torch::log_softmax(x, 1), y.softmax(1), F::KLDivFuncOptions().reduction(torch::kBatchMean)),
              F::poisson_nll_loss(x, y.abs()),
              F::hinge_embedding_loss(x, y.sign()),
              F::cosine_embedding_loss(x, y, sides),
              F::margin_ranking_loss(x.sum(1), y.sum(1), sides),
              F::triplet_margin_loss(x, y, y.roll(1, 0)),
              (1 - F::cosine_similarity(x, y, F::CosineSimilarityFuncOptions().dim(1))).mean(),
          };
          Tensors results{torch::stack(losses).sum()};
          results.insert(results.end(), losses.begin(), losses.end());
          return results;
        });
      },
      [] { return Tensors{torch::randn({5, 6}), torch::randn({5, 4})}; });
}

TEST(ReplayLayers, CtcLossHasTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Linear linear(6, 5);
        return training(linear, [linear](const Tensors& in) mutable {
          const at::Tensor x = torch::log_softmax(linear->forward(in[0]), 2);
          return Tensors{torch::ctc_loss(x, in[1], at::IntArrayRef{8, 8}, at::IntArrayRef{3, 2})};
        });
      },
      [] { return Tensors{torch::randn({8, 2, 6}), torch::randint(1, 5, {2, 3}, torch::kLong)}; });
}

TEST(ReplayLayers, CtcLossTakesPaddedAndConcatenatedTargets) {
  expect_replay_equals_eager(
      [] {
        nn::Linear linear(6, 5);
        return training(linear, [linear](const Tensors& in) mutable {
          const at::Tensor x = torch::log_softmax(linear->forward(in[0]), 2);
          Tensors losses;
          for (size_t targets : {1, 2, 3}) {
            losses.push_back(torch::ctc_loss(x, in[targets], at::IntArrayRef{8, 7}, at::IntArrayRef{3, 2}));
          }
          return Tensors{torch::stack(losses).sum(), losses[0], losses[1], losses[2]};
        });
      },
      [] {
        return Tensors{torch::randn({8, 2, 6}), torch::tensor({{1, 3, 2, -1}, {4, 1, -1, -1}}),
                       torch::tensor({{1, 3, 2}, {4, 1, 1'000'000}}), torch::tensor({1, 3, 2, 4, 1})};
      });
}

TEST(ReplayLayers, UpsamplingAndPaddingHaveTheGradientsOfLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Conv2d conv(2, 4, 3);
        return training(conv, [conv](const Tensors& in) mutable {
          at::Tensor x = conv->forward(in[0]);
          x = F::interpolate(x, F::InterpolateFuncOptions()
                                    .scale_factor(std::vector<double>{2, 2})
                                    .mode(torch::kBilinear)
                                    .align_corners(false));
          x = F::interpolate(x, F::InterpolateFuncOptions().size(std::vector<int64_t>{9, 7}).mode(torch::kNearest));
          x = F::pad(x, F::PadFuncOptions({1, 2, 0, 1}).mode(torch::kReflect));
          x = F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).value(0.5));
          x = torch::pixel_shuffle(x, 2);
          return Tensors{x.square().mean(), x};
        });
      },
      [] { return Tensors{torch::randn({2, 2, 6, 6})}; });
}

// Autocast as a user switches it on: for a scope, and the casts that it remembers end with the scope.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(ReplayLayers, AutocastToBfloat16TrainsAsInLibtorch) {
  expect_replay_equals_eager(
      [] {
        nn::Sequential net(nn::Conv2d(2, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(), nn::Linear(64, 8),
                           nn::LayerNorm(nn::LayerNormOptions({8})), nn::Linear(8, 3));
        return training(net, [net](const Tensors& in) mutable {
          at::Tensor out;
          {
            Autocast autocast;
            out = net->forward(in[0]) + net->forward(in[0] * 0.5);  // the second time from the cache of casts
          }
          return Tensors{F::cross_entropy(out.to(torch::kFloat), in[1]), out};
        });
      },
      [] { return Tensors{torch::randn({4, 2, 6, 6}), torch::randint(3, {4}, torch::kLong)}; });
}

TEST(ReplayLayers, ConstructorsOfModulesAreInitializerPrograms) {
  expect_replay_equals_eager(
      [] {
        return plain([](const Tensors&) {
          nn::Sequential net(nn::Linear(4, 3), nn::Conv2d(2, 3, 3), nn::BatchNorm2d(3), nn::Embedding(5, 4),
                             nn::LSTM(3, 2), nn::MultiheadAttention(4, 2));
          torch::NoGradGuard no_gradients;
          at::Tensor mine = torch::empty({3, 4});
          nn::init::xavier_normal_(mine);
          at::Tensor orthogonal = torch::empty({4, 4});
          nn::init::orthogonal_(orthogonal);
          Tensors made = net->parameters();
          for (const at::Tensor& buffer : net->buffers()) made.push_back(buffer);
          made.push_back(mine);
          made.push_back(orthogonal);
          return made;
        });
      },
      [] { return Tensors{}; });
}

}  // namespace
}  // namespace muster
