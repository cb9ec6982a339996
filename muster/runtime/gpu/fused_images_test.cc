#include "muster/runtime/gpu/fused_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "muster/graph/checker.h"
#include "muster/graph/op_table.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster::fused_images_test {

using ::testing::ElementsAre;
using testing_support::Builder;
using testing_support::integer;
using testing_support::integers;
using testing_support::ref;

constexpr char kNormalize[] = "muster_image::normalize", kBackward[] = "muster_image::normalize_backward";

// A program with one batch norm in training.
struct Norm : Builder {
  explicit Norm(bool training = true) {
    made =
        instruction("aten::native_batch_norm",
                    {ref(x), ref(weight), ref(bias), ref(mean), ref(variance), {training}, {0.1}, {1e-5}}, {1, 1, 1});
  }
  ValueId result(size_t i = 0) const { return program.instructions[made].results[i][0]; }
  // The first is the gradient of the input.
  std::vector<ValueId> backward(ValueId gradient) {
    const ArgumentList all{{true}, {true}, {true}};
    const size_t step = instruction("aten::native_batch_norm_backward",
                                    {ref(gradient),
                                     ref(x),
                                     ref(weight),
                                     ref(mean),
                                     ref(variance),
                                     ref(result(1)),
                                     ref(result(2)),
                                     {true},
                                     {1e-5},
                                     {all}},
                                    {1, 1, 1});
    std::vector<ValueId> gradients;
    for (const auto& values : program.instructions[step].results) gradients.push_back(values[0]);
    return gradients;
  }
  ValueId relu_backward(ValueId gradient, ValueId result) {
    return op("aten::threshold_backward", {ref(gradient), ref(result), integer(0)});
  }

  ValueId x = argument(), weight = argument(), bias = argument(), mean = argument(), variance = argument(),
          other = argument(), gradient = argument();
  size_t made;
};

// The plan on a CPU, as if its kernels could be chosen as they can on a GPU.
struct Fused {
  // `unordered`: operands of steps, by position, that are brought to the usual order. `signals`: a step that tells
  // another lane that it is done; `awaits`: one that waits for another lane.
  explicit Fused(Program made, const std::vector<std::pair<size_t, int32_t>>& unordered = {},
                 std::optional<size_t> signals = std::nullopt, std::optional<size_t> awaits = std::nullopt)
      : program(checked(std::move(made))),
        plan(place(program, {.devices = devices.names(), .default_device = devices.default_name()}), devices, catalog,
             nullptr) {
    for (Step& step : plan.lanes[0]) {
      auto* call = step.as<Step::Op>();
      const std::string& name = plan.program.op_of(plan.program.instructions[step.instruction]).name;
      const ImageKernels* kernels = form_of(name).images;
      if (kernels == nullptr || kernels->images.empty()) continue;
      call->choice = KernelChoice::make(call->op, kernels, at::Device(at::kCUDA, 0), tuner, order);
    }
    for (const auto& [step, position] : unordered) plan.lanes[0][step].unordered.push_back(position);
    if (signals) plan.lanes[0][*signals].signals = plan.num_events++;
    if (awaits) plan.lanes[0][*awaits].awaits.push_back(plan.num_events++);
    const Aliases aliases(program);
    fuse_images(plan, 0, PlanMemory(program, aliases));
  }
  static Program checked(Program program) {
    check(program);
    return program;
  }

  std::vector<std::string> ops() const {
    std::vector<std::string> names;
    for (const Step& step : plan.lanes[0]) names.push_back(step.as<Step::Op>()->op.schema().name());
    return names;
  }
  // By position.
  std::map<int32_t, ValueId> operands(size_t step) const {
    std::map<int32_t, ValueId> values;
    for (const Step::Slot& slot : plan.lanes[0][step].slots) values[slot.position] = slot.value;
    return values;
  }
  const Step& step(size_t i) const { return plan.lanes[0][i]; }

  // Whether every value is there when a step uses it, and is dropped once if it does not come out.
  bool is_sound() const {
    std::set<ValueId> there;
    for (const ProgramArgument& argument : plan.program.arguments) there.insert(argument.value);
    const std::set<ValueId> given = there;
    for (const Step& step : plan.lanes[0]) {
      bool found = true;
      for_each_operand(step, [&](ValueId value) { found = found && there.contains(value); });
      if (!found || step.results.size() != step.as<Step::Op>()->op.schema().returns().size()) return false;
      for (const auto& values : step.results) there.insert(values.begin(), values.end());
      for (ValueId value : step.kills) found = found && there.erase(value) == 1;
      if (!found) return false;
    }
    std::set<ValueId> left(plan.program.outputs.begin(), plan.program.outputs.end());
    left.insert(given.begin(), given.end());
    return there == left;
  }

  LocalDevices devices{{.cpus = 1, .gpus = false}};
  OpCatalog catalog{};
  Autotuner tuner{};
  std::shared_ptr<ImageOrder> order = std::make_shared<ImageOrder>(false);
  Program program;
  Plan plan;
};

TEST(FuseImages, MakesBatchNormSumAndReluOne) {
  Norm norm;
  const ValueId y = norm.relu(norm.add(norm.result(), norm.other));

  const Fused fused(norm.finish({y, norm.result(1)}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize));
  EXPECT_EQ(fused.operands(0)[8], norm.other);
  EXPECT_EQ(fused.step(0).results[0], std::vector{y});
  EXPECT_TRUE(fused.step(0).as<Step::Op>()->stack[9].toBool());
}

TEST(FuseImages, LeavesTheSumOfABatchNormThatIsUsedOtherwise) {
  Norm norm;
  const ValueId y = norm.relu(norm.result());

  EXPECT_THAT(Fused(norm.finish({y, norm.result()})).ops(), ElementsAre(kNormalize, "aten::relu"));
}

TEST(FuseImages, LeavesBatchNormThatUsesItsStatistics) {
  Norm norm(/*training=*/false);
  const ValueId y = norm.relu(norm.result());

  EXPECT_THAT(Fused(norm.finish({y})).ops(), ElementsAre("aten::native_batch_norm", "aten::relu"));
}

TEST(FuseImages, MovesNoBatchNormPastAWriteOfWhatItReads) {
  Norm norm;
  norm.add_(norm.weight, norm.bias);
  const ValueId y = norm.relu(norm.result());

  EXPECT_THAT(Fused(norm.finish({y})).ops(), ElementsAre(kNormalize, "aten::add_", "aten::relu"));
}

TEST(FuseImages, MovesNoBatchNormPastAReadOfWhatItWrites) {
  Norm norm;
  const ValueId seen = norm.add(norm.mean, norm.bias), y = norm.relu(norm.result());

  EXPECT_THAT(Fused(norm.finish({y, seen})).ops(), ElementsAre(kNormalize, "aten::add", "aten::relu"));
}

TEST(FuseImages, MovesNoBatchNormPastAStepThatOthersWaitFor) {
  Norm norm;
  const ValueId seen = norm.relu(norm.other), y = norm.relu(norm.result());

  const Fused fused(norm.finish({y, seen}), {}, /*signals=*/1);

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::relu", "aten::relu"));
}

TEST(FuseImages, MovesNoBatchNormThatWaitsForOthersBehindThoseThatCountOnIt) {
  Norm norm;
  const ValueId seen = norm.relu(norm.x), y = norm.relu(norm.result());

  const Fused fused(norm.finish({y, seen}), {}, /*signals=*/std::nullopt, /*awaits=*/0);

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::relu", "aten::relu"));
}

TEST(FuseImages, LetsNoStepOverwriteWhatABatchNormThatMovesPastItReads) {
  Norm norm;
  const ValueId image = norm.relu(norm.other);
  norm.x = image;
  const size_t made = norm.instruction(
      "aten::native_batch_norm",
      {ref(image), ref(norm.weight), ref(norm.bias), ref(norm.mean), ref(norm.variance), {true}, {0.1}, {1e-5}},
      {1, 1, 1});
  const ValueId normal = norm.program.instructions[made].results[0][0];
  const ValueId last = norm.relu(image);  // could have the image's memory for its result
  const ValueId y = norm.relu(normal);

  const Fused fused(norm.finish({y, last}));

  EXPECT_TRUE(fused.is_sound());
  size_t found = 0;
  for (const Step& step : fused.plan.lanes[0]) {
    if (step.results[0] != std::vector{last}) continue;
    ++found;
    EXPECT_TRUE(step.kills.empty());
    EXPECT_FALSE(step.as<Step::Op>()->in_place.has_value());
    EXPECT_FALSE(step.slots[0].last);
  }
  EXPECT_EQ(found, 1u);
}

TEST(FuseImages, MakesTheBackwardOfBatchNormAndReluOne) {
  Norm norm;
  const ValueId y = norm.relu(norm.result()), g = norm.relu_backward(norm.gradient, y);
  const std::vector<ValueId> gradients = norm.backward(g);

  Fused fused(norm.finish({gradients[0], gradients[1], gradients[2]}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, kBackward));
  EXPECT_TRUE(fused.is_sound());
  EXPECT_EQ(fused.operands(1)[0], norm.gradient);
  EXPECT_EQ(fused.operands(1)[11], y);
  EXPECT_EQ(std::vector{fused.operands(1)[12]}, fused.step(0).results[3]);
  EXPECT_FALSE(fused.step(1).as<Step::Op>()->stack[13].toBool());
}

TEST(FuseImages, AddsGradientsAndKeepsThatOfTheOtherSummand) {
  for (bool in_place : {true, false}) {
    Norm norm;
    const ValueId y = norm.relu(norm.add(norm.result(), norm.other));
    const ValueId a = norm.relu(norm.gradient), b = norm.relu(y);
    const ValueId sum = in_place ? norm.add_(a, b) : norm.add(a, b), g = norm.relu_backward(sum, y);
    const std::vector<ValueId> gradients = norm.backward(g);
    const ValueId more = norm.add_(g, gradients[0]);

    Fused fused(norm.finish({gradients[1], gradients[2], norm.relu(more)}));

    EXPECT_THAT(fused.ops(),
                ElementsAre(kNormalize, "aten::relu", "aten::relu", kBackward, "aten::add_", "aten::relu"));
    EXPECT_TRUE(fused.is_sound());
    EXPECT_EQ(fused.operands(3)[0], a);
    EXPECT_EQ(fused.operands(3)[10], b);
    EXPECT_EQ(fused.step(3).results[3], std::vector{g});
    EXPECT_TRUE(fused.step(3).as<Step::Op>()->stack[13].toBool());
  }
}

TEST(FuseImages, LeavesASumInPlaceThatIsReadAgain) {
  Norm norm;
  const ValueId y = norm.relu(norm.result()), a = norm.relu(norm.gradient), sum = norm.add_(a, norm.other);
  const std::vector<ValueId> gradients = norm.backward(norm.relu_backward(sum, y));
  const ValueId again = norm.relu(a);

  Fused fused(norm.finish({gradients[0], gradients[1], gradients[2], again}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::relu", "aten::add_", kBackward, "aten::relu"));
  EXPECT_TRUE(fused.is_sound());
}

TEST(FuseImages, KeepsWhatStepsBetweenStillUse) {
  Norm norm;
  const ValueId y = norm.relu(norm.result()), a = norm.relu(norm.gradient), b = norm.relu(norm.other);
  const ValueId sum = norm.add(a, b), seen = norm.relu(b), g = norm.relu_backward(sum, y), also = norm.relu(g);
  const std::vector<ValueId> gradients = norm.backward(g);

  Fused fused(norm.finish({gradients[0], gradients[1], gradients[2], seen, also}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::relu", "aten::relu", "aten::relu", kBackward, "aten::relu"));
  EXPECT_TRUE(fused.is_sound());
}

TEST(FuseImages, LeavesTheBackwardOfAnotherImage) {
  Norm norm;
  const ValueId y = norm.relu(norm.result()), image = norm.x;
  norm.x = norm.other;
  const std::vector<ValueId> gradients = norm.backward(norm.relu_backward(norm.gradient, y));
  norm.x = image;

  Fused fused(norm.finish({y, gradients[0], gradients[1], gradients[2]}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::threshold_backward", kBackward));
}

TEST(FuseImages, LeavesTheBackwardOfAReluWhoseResultWasWritten) {
  Norm norm;
  const ValueId y = norm.relu(norm.result());
  norm.add_(y, norm.other);
  const std::vector<ValueId> gradients = norm.backward(norm.relu_backward(norm.gradient, y));

  Fused fused(norm.finish({gradients[0], gradients[1], gradients[2]}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::add_", "aten::threshold_backward", kBackward));
}

TEST(FuseImages, LeavesTheBackwardOfAnotherRelu) {
  Norm norm;
  const ValueId y = norm.relu(norm.result()), z = norm.relu(norm.other);
  const std::vector<ValueId> gradients = norm.backward(norm.relu_backward(norm.gradient, z));

  Fused fused(norm.finish({y, gradients[0], gradients[1], gradients[2]}));

  EXPECT_THAT(fused.ops(), ElementsAre(kNormalize, "aten::relu", "aten::threshold_backward", kBackward));
  EXPECT_TRUE(fused.is_sound());
}

ValueId pool(Builder& builder, ValueId x, std::vector<ValueId>& results) {
  const size_t step = builder.instruction(
      "aten::max_pool2d_with_indices",
      {ref(x), integers({3, 3}), integers({2, 2}), integers({1, 1}), integers({1, 1}), {false}}, {1, 1});
  results = {builder.program.instructions[step].results[0][0], builder.program.instructions[step].results[1][0]};
  return results[0];
}

ValueId pool_backward(Builder& builder, ValueId gradient, ValueId x, ValueId indices, int64_t stride = 2) {
  return builder.op("aten::max_pool2d_with_indices_backward", {ref(gradient),
                                                               ref(x),
                                                               integers({3, 3}),
                                                               integers({stride, stride}),
                                                               integers({1, 1}),
                                                               integers({1, 1}),
                                                               {false},
                                                               ref(indices)});
}

TEST(FuseImages, ReplacesMaxPoolingWhoseIndicesOnlyItsBackwardUses) {
  Builder builder;
  const ValueId x = builder.argument({DType::kFloat, {1, 1, 4, 4}}),
                g = builder.argument({DType::kFloat, {1, 1, 2, 2}});
  std::vector<ValueId> pooled;
  const ValueId y = pool(builder, x, pooled), gradient = pool_backward(builder, g, x, pooled[1]);

  EXPECT_THAT(Fused(builder.finish({y, gradient})).ops(),
              ElementsAre("muster_image::max_pool", "muster_image::max_pool_backward"));
}

TEST(FuseImages, LeavesMaxPoolingWhoseIndicesAreUsedOtherwise) {
  Builder builder;
  const ValueId x = builder.argument({DType::kFloat, {1, 1, 4, 4}});
  std::vector<ValueId> pooled;
  const ValueId y = pool(builder, x, pooled);

  EXPECT_THAT(Fused(builder.finish({y, pooled[1]})).ops(), ElementsAre("aten::max_pool2d_with_indices"));
}

TEST(FuseImages, LeavesMaxPoolingWhoseBackwardHasOtherWindows) {
  Builder builder;
  const ValueId x = builder.argument({DType::kFloat, {1, 1, 4, 4}}),
                g = builder.argument({DType::kFloat, {1, 1, 2, 2}});
  std::vector<ValueId> pooled;
  const ValueId y = pool(builder, x, pooled), gradient = pool_backward(builder, g, x, pooled[1], /*stride=*/3);

  EXPECT_THAT(Fused(builder.finish({y, gradient})).ops(),
              ElementsAre("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"));
}

TEST(FuseImages, LeavesMaxPoolingWhoseBackwardHasAnotherImage) {
  Builder builder;
  const ValueId x = builder.argument({DType::kFloat, {1, 1, 4, 4}}),
                other = builder.argument({DType::kFloat, {1, 1, 4, 4}}),
                g = builder.argument({DType::kFloat, {1, 1, 2, 2}});
  std::vector<ValueId> pooled;
  const ValueId y = pool(builder, x, pooled), gradient = pool_backward(builder, g, other, pooled[1]);

  EXPECT_THAT(Fused(builder.finish({y, gradient})).ops(),
              ElementsAre("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"));
}

TEST(FuseImages, CopiesToTheUsualOrderWhatAllItsUsersWantInThat) {
  for (const bool all : {true, false}) {
    Builder builder;
    const ValueId x = builder.argument();
    const ValueId copy = builder.op("aten::_to_copy", {ref(x), {}, {}, {}, {}, {false}, {}});
    const ValueId y = builder.relu(copy), z = builder.relu(copy);
    std::vector<std::pair<size_t, int32_t>> unordered{{1, 0}};
    if (all) unordered.push_back({2, 0});

    const Fused fused(builder.finish({y, z}), unordered);

    EXPECT_EQ(fused.step(0).as<Step::Op>()->stack.back().isNone(), !all);
  }
}

TEST(FuseImages, CountsTogetherWhatNothingElseLooksAt) {
  Builder builder;
  auto count = [&](ValueId counter, int64_t number) {
    builder.op("aten::add_.Scalar", {ref(counter), integer(number), integer(1)});
  };
  const ValueId a = builder.variable("a"), b = builder.variable("b"), c = builder.variable("c"),
                d = builder.variable("d"), x = builder.argument();
  count(a, 1);
  const ValueId y = builder.relu(x);
  count(b, 1);
  count(c, 2);
  count(d, 1);
  const ValueId seen = builder.relu(d);

  const Fused fused(builder.finish({y, seen}));

  EXPECT_THAT(fused.ops(), ElementsAre("aten::_foreach_add_", "aten::relu", "aten::add_", "aten::add_", "aten::relu"));
  EXPECT_EQ(fused.step(0).lists[0].values, (std::vector{a, b}));
  EXPECT_TRUE(fused.step(0).results.empty());
}

TEST(FuseImages, CountsNothingBeforeItIsMade) {
  Builder builder;
  auto count = [&](ValueId counter) { builder.op("aten::add_.Scalar", {ref(counter), integer(1), integer(1)}); };
  const ValueId a = builder.variable("a"), x = builder.argument();
  count(a);
  const ValueId made = builder.relu(x);
  count(made);

  EXPECT_THAT(Fused(builder.finish({})).ops(), ElementsAre("aten::add_", "aten::relu", "aten::add_"));
}

TEST(FuseImages, CountsNothingBeforeAStepThatOthersWaitFor) {
  Builder builder;
  auto count = [&](ValueId counter) { builder.op("aten::add_.Scalar", {ref(counter), integer(1), integer(1)}); };
  const ValueId a = builder.variable("a"), b = builder.variable("b"), x = builder.argument();
  count(a);
  const ValueId y = builder.relu(x);
  count(b);

  const Fused fused(builder.finish({y}), {}, /*signals=*/1);

  EXPECT_THAT(fused.ops(), ElementsAre("aten::add_", "aten::relu", "aten::add_"));
}

}  // namespace muster::fused_images_test
