#include "muster/runtime/ops/op_guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

c10::OperatorHandle op_named(const std::string& name, const std::string& overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

std::string complaint(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                      at::DeviceType device = at::kCPU) {
  try {
    const auto guard = guard_of(op, {}, device);
    guard->check_once(stack);
    guard->check(stack);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return "";
}

std::vector<int64_t> ints(std::initializer_list<int64_t> list) { return list; }

TEST(OpGuards, AreForOpsThatNeedThem) {
  EXPECT_EQ(guard_of(op_named("aten::relu")), nullptr);
  EXPECT_EQ(guard_of(op_named("aten::mm")), nullptr);
  EXPECT_NE(guard_of(op_named("aten::max_pool2d_with_indices_backward")), nullptr);
}

TEST(OpGuards, TrustTheIndicesOfTheForwardPass) {
  const auto backward = op_named("aten::max_pool2d_with_indices_backward");
  const at::Tensor image = torch::rand({1, 1, 4, 4}), pooled = torch::rand({1, 1, 2, 2});
  const at::Tensor wrong = torch::full({1, 1, 2, 2}, 1000, torch::kLong);
  const std::vector<c10::IValue> stack{pooled,       image,        ints({2, 2}), ints({2, 2}),
                                       ints({0, 0}), ints({1, 1}), false,        wrong};
  std::vector<size_t> asked;
  auto answer = [&](bool found) {
    return guard_of(backward, [&asked, found](size_t indices, size_t self) {
      asked = {indices, self};
      return found;
    });
  };

  EXPECT_NO_THROW(answer(true)->check(stack));
  EXPECT_THROW(answer(false)->check(stack), Error);
  EXPECT_EQ(asked, (std::vector<size_t>{7, 1}));
}

// CUDA's kernels would end the process's context.
TEST(OpGuards, LookAtIndicesBeforeAGpuDoes) {
  const at::Tensor table = torch::rand({4, 3}), far = torch::tensor({0, 4}, torch::kLong);
  const at::Tensor behind = torch::tensor({-4, 3}, torch::kLong), classes = torch::tensor({-100, 2}, torch::kLong);
  auto gpu = [](const char* op, const char* overload, const std::vector<c10::IValue>& stack) {
    return complaint(op_named(op, overload), stack, at::kCUDA);
  };
  using Indices = c10::List<std::optional<at::Tensor>>;
  auto indices = [](const std::vector<std::optional<at::Tensor>>& given) { return Indices(given); };

  EXPECT_EQ(guard_of(op_named("aten::index_select")), nullptr);
  EXPECT_EQ(gpu("aten::index_select", "", {table, 0, far}), "index has 4, expected at least 0 and below 4 (self[dim])");
  EXPECT_EQ(gpu("aten::index_select", "", {table, 0, far.clamp_max(3)}), "");
  EXPECT_THAT(gpu("aten::embedding", "", {table, far, -1, false, false}), HasSubstr("indices has 4"));
  EXPECT_EQ(gpu("aten::take", "", {table.view({-1}), behind}), "");
  EXPECT_EQ(gpu("aten::index", "Tensor", {table, indices({behind})}), "");
  EXPECT_EQ(gpu("aten::index", "Tensor", {table, indices({std::nullopt, far})}),
            "indices has 4, expected at least -3 and below 3");
  EXPECT_EQ(gpu("aten::index", "Tensor", {table.unsqueeze(0), indices({table.gt(2).unsqueeze(0), far.slice(0, 0, 0)})}),
            "");
  EXPECT_EQ(gpu("aten::nll_loss_forward", "", {table, classes, {}, 1, -100}), "");
  EXPECT_THAT(gpu("aten::nll_loss_forward", "", {table, classes, {}, 1, -1}), HasSubstr("target has -100"));
  EXPECT_THAT(gpu("aten::binary_cross_entropy", "", {table * 2 + 1, table, {}, 1}), HasSubstr("not between 0 and 1"));
  EXPECT_THAT(gpu("aten::multinomial", "", {-table, 1, false, {}}), HasSubstr("elements below 0"));
}

// A name that is written wrongly would guard nothing.
TEST(OpGuards, EveryRuleFitsAnAllowedOp) {
  const OpCatalog catalog;
  std::vector<GuardRule> rules(guard_rules().begin(), guard_rules().end());
  rules.insert(rules.end(), gpu_guard_rules().begin(), gpu_guard_rules().end());
  for (const GuardRule& rule : rules) {
    bool used = false;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name == rule.op) used = used || fits(rule, op_named(name.name, name.overload_name).schema());
    }
    EXPECT_TRUE(used) << rule.op << ": " << rule.operand;
    EXPECT_TRUE(catalog.allowed(rule.op)) << rule.op;
  }
}

TEST(OpGuards, LetNoIntegersBeDividedThatHaveNoQuotient) {
  const at::Tensor longs = torch::tensor({7, 8, 9}, torch::kLong), ints = longs.to(torch::kInt);
  const at::Tensor least = torch::tensor({int64_t{3}, std::numeric_limits<int64_t>::min(), int64_t{5}});
  const at::Tensor least_int = torch::tensor({3, std::numeric_limits<int32_t>::min(), 5}, torch::kInt);
  const at::Tensor minus = torch::tensor({2, -1, -2}, torch::kLong);
  const auto divide = op_named("aten::floor_divide"), by_number = op_named("aten::floor_divide", "Scalar");

  EXPECT_EQ(complaint(divide, {longs, minus}), "");
  EXPECT_EQ(complaint(divide, {least, longs}), "");
  EXPECT_EQ(complaint(divide, {least, minus.roll(1)}), "");  // they do not meet
  EXPECT_EQ(complaint(divide, {least, minus}), "self has -9223372036854775808, which has no quotient by -1");
  EXPECT_EQ(complaint(divide, {least_int, minus}), "");  // there is room
  EXPECT_THAT(complaint(divide, {least_int, minus.to(torch::kInt)}), HasSubstr("no quotient"));
  EXPECT_THAT(complaint(by_number, {least, at::Scalar(-1)}), HasSubstr("no quotient"));
  EXPECT_THAT(complaint(by_number, {least_int, at::Scalar(-1)}), HasSubstr("no quotient"));
  EXPECT_EQ(complaint(by_number, {least, at::Scalar(-2)}), "");
  EXPECT_EQ(complaint(by_number, {least.to(torch::kFloat), at::Scalar(-1)}), "");
  EXPECT_THAT(complaint(op_named("aten::div", "Tensor_mode"), {least, minus, std::string("trunc")}),
              HasSubstr("no quotient"));
  EXPECT_EQ(complaint(op_named("aten::div", "Tensor_mode"), {least, minus, c10::IValue()}), "");  // of fractions
  EXPECT_THAT(
      complaint(op_named("aten::remainder", "Scalar_Tensor"), {at::Scalar(std::numeric_limits<int64_t>::min()), minus}),
      HasSubstr("no quotient"));
  EXPECT_THAT(complaint(op_named("aten::smooth_l1_loss"), {ints, ints, int64_t{1}, 0.5}),
              HasSubstr("self is of Int, expected a type with fractions"));
}

TEST(OpGuards, LetNoTensorBeSplitIntoMoreThanAnybodyCanHave) {
  const auto split = op_named("aten::tensor_split", "tensor_indices_or_sections");
  const at::Tensor x = torch::rand({4});
  EXPECT_EQ(complaint(split, {x, torch::tensor(2), int64_t{0}}), "");
  EXPECT_EQ(complaint(split, {x, torch::tensor({int64_t{1} << 40}), int64_t{0}}), "")
      << "which is where, and not how often";
  EXPECT_THAT(complaint(split, {x, torch::tensor(int64_t{1} << 40), int64_t{0}}),
              HasSubstr("expected at most 1048576"));
}

TEST(OpGuards, HoldIndicesAgainstWhatTheyPointInto) {
  const auto backward = op_named("aten::max_pool2d_with_indices_backward");
  const at::Tensor image = torch::rand({1, 1, 4, 4});
  auto [pooled, where] = torch::max_pool2d_with_indices(image, {2, 2});
  auto stack = [&, pooled = pooled](const at::Tensor& indices) -> std::vector<c10::IValue> {
    return {pooled, image, ints({2, 2}), ints({2, 2}), ints({0, 0}), ints({1, 1}), false, indices};
  };

  EXPECT_EQ(complaint(backward, stack(where)), "");
  EXPECT_EQ(complaint(backward, stack(where + 1000)).substr(0, 12), "indices has ");
  EXPECT_THAT(complaint(backward, stack(torch::full_like(where, -1))),
              HasSubstr("indices has -1, expected at least 0 and below 16 (self[-2] * self[-1])"));
  EXPECT_THAT(complaint(backward, stack(where.slice(2, 1))),
              HasSubstr("indices has the sizes [1, 1, 1, 2], expected those of grad_output, [1, 1, 2, 2]"));
}

TEST(OpGuards, LetPaddingBeAnything) {
  const auto loss = op_named("aten::_ctc_loss");
  const at::Tensor log_probs = torch::rand({8, 2, 5}).log_softmax(2);
  auto with = [&](const at::Tensor& targets, std::initializer_list<int64_t> lengths) {
    return complaint(loss, {log_probs, targets, ints({8, 8}), ints(lengths), int64_t{0}, false});
  };

  EXPECT_EQ(with(torch::tensor({{1, 4, -1}, {2, 99, 99}}), {2, 1}), "");
  EXPECT_EQ(with(torch::tensor({1, 4, 2}), {2, 1}), "");
  EXPECT_THAT(with(torch::tensor({{1, 4, -1}, {2, 99, 99}}), {2, 2}),
              HasSubstr("targets has 99, expected at least 0 and below 5 (log_probs[2])"));
  EXPECT_THAT(with(torch::tensor({1, -4, 2}), {2, 1}), HasSubstr("targets has -4"));
  EXPECT_THAT(with(torch::tensor({1, 4, 2}), {2, 2}),
              HasSubstr("target_lengths has 2, expected at least 0 and at most 1, which targets has"));
  EXPECT_THAT(with(torch::tensor({{1, 4, -1}}), {2, 1}), HasSubstr("target_lengths has 1"));
  EXPECT_THAT(with(torch::tensor({1, 4, 2}), {-1, 1}), HasSubstr("target_lengths has -1"));
}

TEST(OpGuards, WantTheNegativePivotsOfABlockInPairs) {
  const auto solve = op_named("aten::linalg_ldl_solve");
  auto with = [&](const at::Tensor& pivots) {
    return complaint(solve, {torch::eye(3), pivots.to(torch::kInt), torch::ones({3, 2}), false});
  };

  EXPECT_EQ(with(torch::tensor({1, 2, 3})), "");
  EXPECT_EQ(with(torch::tensor({1, -3, -3})), "");
  for (const at::Tensor& wrong : {torch::tensor({1, 2, -1}), torch::tensor({-2, 2, 3}), torch::tensor({-2, -3, 3}),
                                  torch::tensor({0, 1, 2}), torch::tensor({1, 2, 4})}) {
    EXPECT_THAT(with(wrong), HasSubstr("pivots has the pivot"));
  }
}

TEST(OpGuards, CountTheBagsThatOffsetsBegin) {
  const auto backward = op_named("aten::_embedding_bag_per_sample_weights_backward");
  const at::Tensor none = torch::empty({0}, torch::kLong), indices = torch::tensor({0, 1, 2, 3});
  auto with = [&](const at::Tensor& offsets) {
    return complaint(backward, {torch::ones({2, 3}), torch::ones({5, 3}), indices, offsets, none, int64_t{0}, -1});
  };

  EXPECT_EQ(with(torch::tensor({0, 2})), "");
  EXPECT_EQ(with(torch::tensor({0, 2, 4})), "") << "the last one is where the last bag ends";
  EXPECT_THAT(with(torch::tensor({0, 2, 3})), HasSubstr("offsets has 3 rows, expected at most 2"));
}

TEST(OpGuards, WantTheStateOfEachParameterToBeOfItsShape) {
  const auto adagrad = op_named("aten::_fused_adagrad_");
  auto with = [&](const at::Tensor& sums, std::vector<at::Tensor> steps) {
    const std::vector<at::Tensor> values{torch::ones({3, 4})};
    return complaint(adagrad,
                     {values, values, std::vector{sums}, std::move(steps), 0.1, 0.1, 0.0, 1e-8, false, {}, {}});
  };

  EXPECT_EQ(with(torch::ones({3, 4}), {torch::ones({})}), "");
  EXPECT_EQ(with(torch::ones({4, 3}).t(), {torch::ones({})}), "");
  EXPECT_THAT(with(torch::ones({3}), {torch::ones({})}),
              HasSubstr("state_sums has [3] of Float at 0, expected [3, 4]"));
  EXPECT_THAT(with(torch::ones({1}).expand({3, 4}), {torch::ones({})}),
              HasSubstr("state_sums does not fill its memory"));
  EXPECT_THAT(with(torch::ones({3, 4}), {}), HasSubstr("len(state_steps) is 0, expected 1 (len(self))"));
}

TEST(OpGuards, LookAtPlainArgumentsOnce) {
  const auto expand = guard_of(op_named("aten::expand"));
  const std::vector<c10::IValue> stack{torch::ones({1}), ints({int64_t{1} << 40}), false};

  EXPECT_FALSE(expand->looks_at_each_call());
  EXPECT_THROW(expand->check_once(stack), Error);
}

TEST(OpGuards, KeepReshapedTensorsInTheirMemory) {
  const auto reshape = op_named("aten::_reshape_alias");
  const at::Tensor six = torch::rand({6});

  EXPECT_EQ(complaint(reshape, {six, ints({2, 3}), ints({3, 1})}), "");
  EXPECT_THAT(complaint(reshape, {six, ints({2, 3}), ints({4, 1})}), HasSubstr("a memory of 6 elements"));
  EXPECT_THAT(complaint(reshape, {six, ints({2}), ints({-1})}), HasSubstr("negative"));
  EXPECT_THAT(complaint(reshape, {six, ints({4, 4}), ints({int64_t{1} << 62, int64_t{1} << 62})}),
              HasSubstr("does not fit"));
  EXPECT_THAT(complaint(reshape, {six, ints({int64_t{1} << 62, 4}), ints({0, 0})}), HasSubstr("too large"));
}

TEST(OpGuards, WantStatisticsPerChannel) {
  const auto norm = op_named("aten::native_batch_norm");
  const at::Tensor input = torch::rand({2, 3, 4}), three = torch::ones({3}), two = torch::ones({2});
  auto with = [&](const c10::IValue& weight, const c10::IValue& mean, bool training) {
    return complaint(norm, {input, weight, three, mean, three, training, 0.1, 1e-5});
  };

  EXPECT_EQ(with(three, three, true), "");
  EXPECT_EQ(with({}, {}, true), "");
  EXPECT_THAT(with(two, three, true), HasSubstr("weight is 2, expected 3 (input[1])"));
  EXPECT_THAT(with(three, two, false), HasSubstr("running_mean is 2, expected 3 (input[1])"));
  EXPECT_THAT(with(three, {}, false), HasSubstr("running_mean is missing"));
}

TEST(OpGuards, CompareProductsWithoutOverflow) {
  const auto norm = op_named("aten::native_group_norm");
  const int64_t huge = int64_t{1} << 40;

  EXPECT_THAT(complaint(norm, {torch::rand({2, 4, 3}), {}, {}, huge, huge, huge, 2, 1e-5}),
              HasSubstr("N * C * HxW is too large"));
}

}  // namespace
}  // namespace muster
