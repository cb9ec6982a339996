// Values that C++ reads from tensors while a function is traced: which ones a program can live with.
#include "muster/trace/tracer/trace.h"

#include "muster/base/log.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDecides = "the value of a tensor decides what the function does";

TEST(ReadWhileTracing, DecidesOnEitherSideOfZero) {
  auto branch = [](at::Tensor x) { return x.item<float>() > 0 ? x * 2 : x - 1; };

  for (float value : {5.0f, 0.5f, 0.0f, -0.5f, -5.0f, -300.0f}) {
    EXPECT_THAT(error_of([&] { function(branch)(torch::full({}, value)); }), HasSubstr(kDecides)) << value;
  }
}

TEST(ReadWhileTracing, DecidesAShape) {
  auto zeros = function([](at::Tensor n) { return torch::zeros({n.item<int64_t>()}); });

  EXPECT_THAT(error_of([&] { zeros(torch::scalar_tensor(3, torch::kLong)); }), HasSubstr(kDecides));
}

TEST(ReadWhileTracing, MayBeACheckThatFailsForOtherValues) {
  auto checked = function([](at::Tensor x) {
    if (x.min().item<float>() < 0) throw std::domain_error("negative");
    if (x.max().item<float>() > 1) throw std::domain_error("too large");
    return x.sqrt();
  });
  LogCapture log;

  const at::Tensor root = checked(torch::tensor({0.0f, 0.25f, 1.0f}));

  EXPECT_TRUE(same_bits(torch::tensor({0.0f, 0.5f, 1.0f}), root));
  EXPECT_TRUE(log.contains("later calls will not read it again"));
  EXPECT_THROW(function([](at::Tensor x) -> at::Tensor {
                 if (x.min().item<float>() < 0) throw std::domain_error("negative");
                 return x;
               })(torch::tensor({-1.0f})),
               std::domain_error);
}

TEST(ReadWhileTracing, OfOneHotIsACheckOfItsClasses) {
  auto encode = function([](at::Tensor classes) { return torch::one_hot(classes, 3); });
  auto guess = function([](at::Tensor classes) { return torch::one_hot(classes); });
  LogCapture log;

  EXPECT_TRUE(same_bits(torch::one_hot(torch::tensor({0, 2, 1}), 3), encode(torch::tensor({0, 2, 1}))));
  EXPECT_TRUE(same_bits(torch::one_hot(torch::tensor({1, 1, 0}), 3), encode(torch::tensor({1, 1, 0}))));
  EXPECT_THAT(error_of([&] { encode(torch::tensor({0, 3, 1})); }), HasSubstr("aten::scatter"));
  EXPECT_THAT(error_of([&] { guess(torch::tensor({0, 2, 1})); }), HasSubstr(kDecides));
}

TEST(ReadWhileTracing, OfAConstantIsFree) {
  const at::Tensor captured = torch::tensor({1, 0, 2});
  auto use = function([&](at::Tensor x) {
    const int64_t rows = torch::tensor({2, 3}).sum().item<int64_t>();
    const at::Tensor places = torch::nonzero(captured);  // of a shape that never changes
    return std::make_pair(torch::full({rows}, captured.max().item<int64_t>()) + x, places + x.to(torch::kLong));
  });
  LogCapture log;

  auto [first, second] = use(torch::ones({}));

  EXPECT_TRUE(same_bits(torch::full({5}, 2).to(torch::kLong) + torch::ones({}), first));
  EXPECT_TRUE(same_bits(torch::tensor({{1}, {3}}), second));
  EXPECT_TRUE(log.lines().empty());
}

TEST(ReadWhileTracing, OfWhatDataWentIntoIsNotFree) {
  auto written = function([](at::Tensor x) {
    at::Tensor sum = torch::zeros({2});
    sum.view({2, 1})[0].add_(x);
    return torch::zeros({static_cast<int64_t>(sum.sum().item<float>())});
  });
  auto random = function([] { return torch::rand({}).item<float>() > 0.5 ? torch::ones({}) : torch::zeros({}); });
  Variable variable(torch::ones({}));
  auto read = function([&] { return torch::zeros({variable.value().to(torch::kLong).item<int64_t>()}); });

  EXPECT_THAT(error_of([&] { written(torch::ones({})); }), HasSubstr(kDecides));
  EXPECT_THAT(error_of([&] { random(); }), HasSubstr(kDecides));
  EXPECT_THAT(error_of([&] { read(); }), HasSubstr(kDecides));
}

TEST(ReadWhileTracing, OfWhatALoopWritesIsNotFree) {
  auto count = function([](at::Tensor x) {
    at::Tensor trips = torch::zeros({}, torch::kLong);
    return repeat(
        3,
        [&](at::Tensor, at::Tensor sum) {
          const int64_t now = trips.item<int64_t>();
          trips.add_(1);
          return sum + now;
        },
        x);
  });
  auto after = function([](at::Tensor x) {
    at::Tensor trips = torch::zeros({}, torch::kLong);
    repeat(3, [&] { trips.add_(1); });
    return x + trips.item<int64_t>();
  });

  EXPECT_THAT(error_of([&] { count(torch::zeros({})); }), HasSubstr(kDecides));
  EXPECT_THAT(error_of([&] { after(torch::zeros({})); }), HasSubstr(kDecides));
}

TEST(ReadWhileTracing, WhetherATensorEqualsItselfIsFree) {
  auto same = function([](at::Tensor x) { return torch::equal(x, x.view_as(x)) ? x * 2 : x; });
  LogCapture log;

  EXPECT_TRUE(same_bits(torch::full({3}, 2.0f), same(torch::ones({3}))));
  EXPECT_TRUE(log.lines().empty());
}

TEST(ReadWhileTracing, WhetherQueriesEqualKeysDoesNotDecideAttention) {
  torch::manual_seed(1);
  torch::nn::MultiheadAttention attention(8, 2);
  auto attend = function([&](at::Tensor q, at::Tensor k) { return std::get<0>(attention->forward(q, k, k)); });
  const at::Tensor q = torch::randn({5, 2, 8}), k = torch::randn({5, 2, 8});

  attend(torch::zeros({5, 2, 8}), torch::zeros({5, 2, 8}));  // traced with equal ones

  EXPECT_TRUE(same_bits(std::get<0>(attention->forward(q, k, k)).detach(), attend(q, k)));
}

TEST(ReadWhileTracing, OfLengthsThatAreDataIsRejectedByPacking) {
  auto pack = function([](at::Tensor x, at::Tensor lengths) {
    return torch::nn::utils::rnn::pack_padded_sequence(x, lengths, false, /*enforce_sorted=*/true).data() * 1;
  });

  EXPECT_THAT(error_of([&] { pack(torch::randn({4, 2, 3}), torch::tensor({4, 2})); }),
              HasSubstr("aten::_pack_padded_sequence depends on the data"));
}

// libtorch takes the elements out of memory, where no op is seen.
TEST(ReadWhileTracing, ByOpsThatTakeLengthsFromTensorsIsRejected) {
  auto ctc =
      function([](at::Tensor x, at::Tensor y, at::Tensor in, at::Tensor out) { return at::ctc_loss(x, y, in, out); });
  auto split = function([](at::Tensor x, at::Tensor at) { return x.tensor_split(at)[0] * 1; });
  auto pad = function(
      [](at::Tensor x, at::Tensor sizes) { return std::get<0>(at::_pad_packed_sequence(x, sizes, false, 0, -1)); });
  const at::Tensor weights = torch::randn({6, 2}), bias = torch::randn({6});
  auto gru = function([&](at::Tensor x, at::Tensor sizes) {
    return std::get<0>(
        at::gru(x, sizes, torch::zeros({1, 2, 2}), {weights, weights, bias, bias}, true, 1, 0, false, false));
  });

  EXPECT_THAT(error_of([&] {
                ctc(torch::randn({4, 1, 3}).log_softmax(2), torch::tensor({{1, 2}}), torch::tensor({4}),
                    torch::tensor({2}));
              }),
              HasSubstr("aten::ctc_loss.Tensor reads the elements of its operand \"input_lengths\""));
  EXPECT_THAT(error_of([&] { split(torch::ones({4}), torch::tensor({1, 2})); }), HasSubstr("reads the elements"));
  EXPECT_THAT(error_of([&] { pad(torch::ones({3, 2}), torch::tensor({2, 1})); }), HasSubstr("\"batch_sizes\""));
  EXPECT_THAT(error_of([&] { gru(torch::ones({3, 2}), torch::tensor({2, 1})); }), HasSubstr("\"batch_sizes\""));
}

TEST(ReadWhileTracing, OfLengthsThatTheFunctionMakesOfNumbersIsFine) {
  auto split = function([](at::Tensor x) { return x.tensor_split(torch::tensor({1, 3}))[1] * 2; });

  split(torch::ones({4}));

  EXPECT_TRUE(same_bits(torch::tensor({2.0f, 4.0f}), split(torch::arange(4).to(torch::kFloat))));
}

TEST(ReadWhileTracing, OfHowManyDifferentElementsThereAreIsRejected) {
  auto different = function([](at::Tensor x) { return std::get<0>(at::_unique(x)); });

  EXPECT_THAT(error_of([&] { different(torch::tensor({1, 2, 1})); }), HasSubstr("aten::_unique depends on the data"));
}

TEST(Check, OfAnOpThatReturnsNothingIsMadeInEveryRun) {
  auto root = function([](at::Tensor x) { return torch::linalg_cholesky(x); });

  EXPECT_TRUE(same_bits(torch::eye(2) * 2, root(torch::eye(2) * 4)));
  EXPECT_THAT(error_of([&] { root(-torch::eye(2)); }), HasSubstr("not positive-definite"));
}

}  // namespace
}  // namespace muster
