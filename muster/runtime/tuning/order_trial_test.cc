#include "muster/runtime/tuning/order_trial.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <thread>

#include "muster/graph/test_program.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/test_files.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/matrix_product.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::order_trial_test {
namespace {

using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;
using testing_support::refs;

constexpr int64_t kBatch = 64, kInputs = 784, kOutputs = 128;
constexpr double kRate = 0.001;
const TensorSpec kWeight{DType::kFloat, {kOutputs, kInputs}};
const TensorSpec kInput{DType::kFloat, {kBatch, kInputs}};
const TensorSpec kOutput{DType::kFloat, {kBatch, kOutputs}};

ValueId product(Builder& b, ValueId x, ValueId w) { return b.op("aten::mm", {ref(x), ref(b.op("aten::t", {ref(w)}))}); }

// One step of a linear layer towards `wanted`, in the body of a loop or not.
ValueId gradient_of(Builder& b, ValueId x, ValueId wanted, ValueId w) {
  const ValueId error = b.op("aten::add.Tensor", {ref(product(b, x, w)), ref(wanted), integer(-1)});
  return b.op("aten::mm", {ref(b.op("aten::t", {ref(error)})), ref(x)});
}
void descend(Builder& b, ValueId x, ValueId wanted, ValueId w) {
  b.op("aten::sub_.Tensor", {ref(w), ref(gradient_of(b, x, wanted, w)), {kRate}});
}

ValueId weight(Builder& b) {
  const ValueId w = b.variable("w");
  b.program.variables.back().spec = kWeight;
  return w;
}

Program training() {
  Builder b("training");
  const ValueId x = b.argument(kInput), wanted = b.argument(kOutput);
  descend(b, x, wanted, weight(b));
  return b.finish({});
}

Program three_steps() {
  Builder body("body");
  body.argument({DType::kLong, {}});
  const ValueId state = body.argument(kOutput), x = body.argument(kInput), wanted = body.argument(kOutput);
  descend(body, x, wanted, body.argument(kWeight));
  Program inside = body.finish({body.relu(state)});
  Builder b("three_steps");
  const ValueId input = b.argument(kInput), target = b.argument(kOutput);
  const int32_t number = b.body(std::move(inside));
  b.instruction(kLoop.name, {integer(3), refs({target}), refs({input, target, weight(b)})}, {1, 1, 1}, "", {number});
  return b.finish({});
}

Program prediction() {
  Builder b("prediction");
  const ValueId x = b.argument(kInput);
  return b.finish({product(b, x, weight(b))});
}

// As a program multiplies, whose bits need not be those of libtorch.
at::Tensor times(const at::Tensor& a, const at::Tensor& b) {
  std::vector<c10::IValue> stack{a, b};
  return multiply_here(1, stack) ? stack[0].toTensor() : a.mm(b);
}

class WeightsInColumns : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // several would wait for each other on a machine that is busy
    torch::manual_seed(3);
    x_ = torch::randn({kBatch, kInputs});
    wanted_ = torch::randn({kBatch, kOutputs});
    expected_ = torch::randn({kOutputs, kInputs});
    cell_ = worker_.store().declare("w", kWeight, at::kCPU);
    cell_->assign(expected_);
  }

  void TearDown() override { at::set_num_threads(threads_); }

  void descend_in_rows() { expected_.sub_(times((times(x_, expected_.t()) - wanted_).t(), x_), kRate); }

  const int threads_ = at::get_num_threads();
  LocalWorker worker_{{.devices = {.gpus = false}, .storage = {testing::TempDir()}}};
  std::shared_ptr<VariableCell> cell_;
  at::Tensor x_, wanted_, expected_;
};

TEST_F(WeightsInColumns, AreTrainedWithTheBitsOfThoseInRows) {
  const ProgramHandle step = worker_.register_program(training());

  for (int i = 0; i < 5; ++i) {
    worker_.run(step, {x_, wanted_});
    descend_in_rows();
  }

  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
}

TEST_F(WeightsInColumns, AreNotForThoseWhoWantTheBitsOfEagerLibtorch) {
  LocalWorker exact({.devices = {.gpus = false}, .exact = true});
  exact.store().declare("w", kWeight, at::kCPU)->assign(expected_);
  const ProgramHandle step = exact.register_program(training());

  for (int i = 0; i < 5; ++i) {
    exact.run(step, {x_, wanted_});
    expected_.sub_((x_.mm(expected_.t()) - wanted_).t().mm(x_), kRate);
  }

  EXPECT_TRUE(torch::equal(exact.store().find("w")->read(), expected_));
}

TEST_F(WeightsInColumns, MayHaveGradientsThatAreMultipliedByARate) {
  Builder b("rated");
  const ValueId x = b.argument(kInput), wanted = b.argument(kOutput), w = weight(b);
  const ValueId rated = b.op("aten::mul.Scalar", {ref(gradient_of(b, x, wanted, w)), {kRate}});
  b.op("aten::sub_.Tensor", {ref(w), ref(rated), integer(1)});
  const ProgramHandle step = worker_.register_program(b.finish({}));

  for (int i = 0; i < 5; ++i) {
    worker_.run(step, {x_, wanted_});
    expected_.sub_(times((times(x_, expected_.t()) - wanted_).t(), x_) * kRate);
  }

  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
  bool asked = false;
  for (const auto& [key, choice] : worker_.tuner()->all()) asked = asked || key.what.starts_with("weight ");
  EXPECT_TRUE(asked) << "it was never found out in which order the weight should lie";
}

TEST_F(WeightsInColumns, MayHaveAGradientThatIsSubtractedTwice) {
  Builder b("twice");
  const ValueId x = b.argument(kInput), wanted = b.argument(kOutput), w = weight(b);
  const ValueId gradient = gradient_of(b, x, wanted, w);
  b.op("aten::sub_.Tensor", {ref(w), ref(gradient), {kRate}});
  b.op("aten::sub_.Tensor", {ref(w), ref(b.op("aten::mul.Scalar", {ref(gradient), {kRate}})), integer(1)});
  const ProgramHandle step = worker_.register_program(b.finish({}));

  for (int i = 0; i < 3; ++i) {
    worker_.run(step, {x_, wanted_});
    const at::Tensor expected_gradient = times((times(x_, expected_.t()) - wanted_).t(), x_);
    expected_.sub_(expected_gradient, kRate).sub_(expected_gradient * kRate);
  }

  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
}

TEST_F(WeightsInColumns, AreTrainedInLoops) {
  const ProgramHandle steps = worker_.register_program(three_steps());

  for (int i = 0; i < 3; ++i) worker_.run(steps, {x_, wanted_});
  for (int i = 0; i < 9; ++i) descend_in_rows();

  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
}

TEST_F(WeightsInColumns, AreInRowsForAllOthers) {
  const ProgramHandle step = worker_.register_program(training()), predict = worker_.register_program(prediction());
  const std::string path = testing::TempDir() + "weights-" + std::to_string(random_id());
  CheckpointDirectory directory(path);
  auto train = [&] {
    for (int i = 0; i < 3; ++i) {
      worker_.run(step, {x_, wanted_});
      descend_in_rows();
      EXPECT_TRUE(torch::equal(worker_.run(predict, {x_}).at(0), times(x_, expected_.t())));
    }
  };

  train();
  EXPECT_TRUE(cell_->read().is_contiguous());
  EXPECT_TRUE(torch::equal(cell_->read(), expected_));

  train();
  const StoredVariable stored{"w", kWeight, worker_.devices().default_name(), "w", kWeight.sizes};
  const std::string temporary = directory.begin(1);
  CheckpointIndex index{.step = 1};
  index.entries = worker_.save(temporary, {stored}, {});
  const std::string checkpoint = directory.commit(temporary, index);
  const at::Tensor saved = expected_.clone();

  train();
  expected_ = torch::randn({kOutputs, kInputs});
  cell_->assign(expected_);
  train();
  EXPECT_TRUE(torch::equal(cell_->read(), expected_));

  train();
  worker_.restore(checkpoint, {stored}, RestoreStage::kApply);
  expected_ = saved.clone();
  train();
  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
  std::filesystem::remove_all(path);
}

TEST_F(WeightsInColumns, AreWrittenAndReadByManyThreads) {
  // Whole numbers: the sum of the updates is the same in any order.
  Builder b;
  const ValueId x = b.argument(kInput), w = weight(b), error = b.argument(kOutput);
  const ValueId gradient = b.op("aten::mm", {ref(b.op("aten::t", {ref(error)})), ref(x)});
  b.op("aten::sub_.Tensor", {ref(w), ref(gradient), integer(1)});
  const ProgramHandle step = worker_.register_program(b.finish({})), predict = worker_.register_program(prediction());
  x_ = torch::randint(-1, 2, {kBatch, kInputs}, torch::kFloat);
  const at::Tensor errors = torch::randint(-1, 2, {kBatch, kOutputs}, torch::kFloat);
  cell_->assign(torch::zeros({kOutputs, kInputs}));
  constexpr int kThreads = 3, kRuns = 20;

  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRuns; ++i) {
          worker_.run(step, {x_, errors});
          EXPECT_TRUE(t != 0 || i % 8 != 0 || cell_->read().is_contiguous());
          if (t == 1) worker_.run(predict, {x_});
        }
      });
    }
  }

  EXPECT_TRUE(torch::equal(cell_->read(), errors.t().mm(x_) * (-kThreads * kRuns)));
}

TEST_F(WeightsInColumns, StayInRowsIfARunDoesNotShowAllThatIsDoneWithThem) {
  Builder trains("trains");
  const ValueId x = trains.argument(kInput), wanted = trains.argument(kOutput);
  descend(trains, x, wanted, trains.argument(kWeight));
  Program first = trains.finish({}), second = first;
  Builder b;
  const ValueId input = b.argument(kInput), target = b.argument(kOutput);
  const ValueId yes = b.argument({DType::kBool, {}}), w = weight(b);
  const int32_t then = b.body(std::move(first)), otherwise = b.body(std::move(second));
  b.instruction(kCond.name, {ref(yes), refs({input, target, w})}, {0}, "", {then, otherwise});
  const ProgramHandle step = worker_.register_program(b.finish({}));

  for (int i = 0; i < 3; ++i) {
    worker_.run(step, {x_, wanted_, torch::tensor(true)});
    descend_in_rows();
  }

  EXPECT_FALSE(in_columns(cell_->read(false, MatrixOrder::kEither)));
  EXPECT_TRUE(torch::equal(cell_->read(), expected_));
}

TEST_F(WeightsInColumns, AreWhereATuningFileSaysSo) {
  const testing_support::ScopedDirectory folder;
  const std::string path = folder.path("choices");
  LocalWorker measuring({.devices = {.gpus = false}, .tuning = {TuningMode::kMeasure, path}});
  measuring.store().declare("w", kWeight, at::kCPU)->assign(expected_);
  measuring.run(measuring.register_program(training()), {x_, wanted_});
  TuningTable told = measuring.tuner()->all();
  ASSERT_EQ(told.size(), 1u);

  for (const char* order : {"rows", "columns"}) {
    told.begin()->second.winner = order;
    testing_support::write_file(path, tuning_text(told));
    LocalWorker pinned({.devices = {.gpus = false}, .tuning = {TuningMode::kPinned, path}});
    const auto cell = pinned.store().declare("w", kWeight, at::kCPU);
    cell->assign(expected_);
    const ProgramHandle step = pinned.register_program(training());
    for (int i = 0; i < 3; ++i) pinned.run(step, {x_, wanted_});

    EXPECT_EQ(in_columns(cell->read(false, MatrixOrder::kEither)), order == std::string("columns"));
    EXPECT_EQ(pinned.tuner()->measured(), 0);
  }
}

// Central storage: the weight on one device, a replica on each of two.
Program training_on_two_devices() {
  Builder b("two_devices");
  const ValueId x = b.argument(kInput), wanted = b.argument(kOutput), w = weight(b);
  b.program.devices = {"", "/device:CPU:0", "/device:CPU:1"};
  auto gradient_on = [&](int32_t device) {
    const size_t first = b.program.instructions.size();
    const ValueId error = b.op("aten::add.Tensor", {ref(product(b, x, w)), ref(wanted), integer(-1)});
    const ValueId gradient = b.op("aten::mm", {ref(b.op("aten::t", {ref(error)})), ref(x)});
    for (size_t i = first; i < b.program.instructions.size(); ++i) b.program.instructions[i].device = device;
    return gradient;
  };
  const ValueId here = gradient_on(1), there = gradient_on(2);
  b.op("aten::sub_.Tensor", {ref(w), ref(b.add(here, there)), {kRate}});
  b.program.instructions.back().device = 1;
  return b.finish({});
}

TEST_F(WeightsInColumns, MayHaveReplicasThatReadThemFromOtherDevices) {
  const testing_support::ScopedDirectory folder;
  const std::string path = folder.path("choices");
  const LocalDevicesOptions devices{.cpus = 2, .gpus = false};
  LocalWorker measuring({.devices = devices, .tuning = {TuningMode::kMeasure, path}});
  measuring.store().declare("w", kWeight, at::kCPU)->assign(expected_);
  measuring.run(measuring.register_program(training_on_two_devices()), {x_, wanted_});
  TuningTable told = measuring.tuner()->all();
  ASSERT_EQ(told.size(), 1u);
  told.begin()->second.winner = "columns";
  testing_support::write_file(path, tuning_text(told));
  LocalWorker pinned({.devices = devices, .tuning = {TuningMode::kPinned, path}});
  const auto cell = pinned.store().declare("w", kWeight, at::kCPU);
  cell->assign(expected_);
  const ProgramHandle step = pinned.register_program(training_on_two_devices());

  for (int i = 0; i < 3; ++i) {
    pinned.run(step, {x_, wanted_});
    const at::Tensor gradient = times((times(x_, expected_.t()) - wanted_).t(), x_);
    expected_.sub_(gradient + gradient, kRate);
  }

  EXPECT_TRUE(in_columns(cell->read(false, MatrixOrder::kEither)));
  EXPECT_TRUE(torch::allclose(cell->read(), expected_, 1e-4, 1e-4));
}

TEST_F(WeightsInColumns, AreGivenProductsInColumns) {
  std::vector<c10::IValue> stack{wanted_.t(), x_};

  multiply_into_columns(stack);

  ASSERT_EQ(stack.size(), 1u);
  EXPECT_TRUE(in_columns(stack[0].toTensor()));
  EXPECT_TRUE(torch::allclose(stack[0].toTensor(), wanted_.t().mm(x_), 1e-4, 1e-4));
}

}  // namespace
}  // namespace muster::order_trial_test
