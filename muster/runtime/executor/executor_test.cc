#include "muster/runtime/executor/executor.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "muster/base/status.h"
#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/operands.h"

namespace muster {
namespace {

using testing_support::Builder;
using testing_support::integer;
using testing_support::integers;
using testing_support::ref;
using testing_support::refs;

constexpr char kCpu0[] = "/job:localhost/replica:0/task:0/device:CPU:0";
constexpr char kCpu1[] = "/job:localhost/replica:0/task:0/device:CPU:1";

// Two CPU devices and what an executor needs besides.
struct Bench {
  LocalDevices devices{{.cpus = 2, .gpus = false}};
  OpCatalog catalog{};
  VariableStore variables{};

  // `task`: of a part that others ask for.
  std::unique_ptr<Executor> make(Program program, const std::string& task = "") {
    check(program);
    Program placed = place(std::move(program), {.devices = devices.names(), .default_device = devices.default_name()});
    placed.task = task;
    return std::make_unique<Executor>(std::move(placed), devices, catalog, variables);
  }
  // Of a program that adds its argument to the variable "w", in place.
  std::unique_ptr<Executor> make_adder(const TensorSpec& argument = {DType::kFloat, {2, 2}}) {
    Builder builder;
    ValueId w = builder.variable("w"), x = builder.argument(argument);
    builder.add_(w, x);
    return make(builder.finish({}));
  }
  std::shared_ptr<VariableCell> variable(const std::string& name, double value) {
    auto cell = variables.declare(name, {DType::kFloat, {2, 2}}, at::kCPU);
    cell->assign(torch::full({2, 2}, value));
    return cell;
  }
};

StatusCode code_of(const std::function<void()>& work, std::string* message = nullptr) {
  try {
    work();
  } catch (const Error& error) {
    if (message) *message = error.status().message();
    return error.code();
  }
  return StatusCode::kOk;
}

TEST(Executor, RunsAProgramAgainAndAgain) {
  Bench bench;
  Builder builder;
  ValueId x = builder.argument(), y = builder.argument();
  auto executor = bench.make(builder.finish({builder.relu(builder.add(x, y))}));

  for (int i = 0; i < 3; ++i) {
    auto outputs = executor->run({torch::full({2, 2}, 1.0F * i), torch::full({2, 2}, -1.0F)});
    EXPECT_TRUE(torch::equal(outputs.at(0), torch::full({2, 2}, std::max(0.0F, i - 1.0F))));
  }
}

TEST(Executor, UpdatesVariablesInPlace) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  auto executor = bench.make_adder();
  const void* memory = cell->read().data_ptr();

  executor->run({torch::full({2, 2}, 2.0F)});
  executor->run({torch::full({2, 2}, 3.0F)});

  EXPECT_TRUE(torch::equal(cell->read(), torch::full({2, 2}, 6.0F)));
  EXPECT_EQ(cell->read().data_ptr(), memory);
}

TEST(Executor, CopiesWhatWasTransposedInRowsWhereAPartSendsIt) {
  for (const bool part : {false, true}) {
    SCOPED_TRACE(part);
    Bench bench;
    auto cell = bench.variable("w", 0);
    Builder builder;
    ValueId w = builder.variable("w"), x = builder.argument();
    builder.add_(w, x);
    Program program = builder.finish({builder.op(kCopy.name, {ref(builder.op("aten::t", {ref(w)}))})});
    auto executor = bench.make(std::move(program), part ? "/job:localhost/replica:0/task:0" : "");

    const at::Tensor sent = executor->run({torch::arange(4.0F).view({2, 2})}).at(0);

    EXPECT_TRUE(torch::equal(sent, torch::arange(4.0F).view({2, 2}).t()));
    EXPECT_EQ(sent.is_contiguous(), part);
  }
}

TEST(Executor, LeavesWhatAReaderHoldsAsItWas) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  Builder builder;
  ValueId w = builder.variable("w"), x = builder.argument();
  auto executor = bench.make(builder.finish({builder.add_(w, x)}));

  at::Tensor held = cell->read();
  at::Tensor first = executor->run({torch::ones({2, 2})}).at(0);
  at::Tensor second = executor->run({torch::ones({2, 2})}).at(0);

  EXPECT_TRUE(torch::equal(held, torch::ones({2, 2})));
  EXPECT_TRUE(torch::equal(first, torch::full({2, 2}, 2.0F)));
  EXPECT_TRUE(torch::equal(second, torch::full({2, 2}, 3.0F)));
}

TEST(Executor, DoesNotOverwriteALastOperandThatGoesByTwoNames) {
  Bench bench;
  Builder builder;
  const ValueId sum = builder.add(builder.argument(), builder.argument());
  const ValueId same = builder.op("aten::mul_.Scalar", {ref(sum), integer(-1)});
  const ValueId positive = builder.relu(sum);
  auto executor = bench.make(builder.finish({same, positive}));

  const auto outputs = executor->run({torch::ones({2, 2}), torch::ones({2, 2})});

  EXPECT_TRUE(torch::equal(outputs.at(0), torch::full({2, 2}, -2.0F)));
  EXPECT_TRUE(torch::equal(outputs.at(1), torch::zeros({2, 2})));
}

TEST(Executor, TakesAnOperandTwiceThatIsNotUsedAgain) {
  Bench bench;
  Builder builder;
  const ValueId sum = builder.add(builder.argument(), builder.argument());
  auto executor = bench.make(builder.finish({builder.add(sum, sum)}));

  EXPECT_TRUE(torch::equal(executor->run({torch::ones({2, 2}), torch::ones({2, 2})}).at(0), torch::full({2, 2}, 4.0F)));
}

TEST(Executor, NamesAVariableThatWasNeverInitialized) {
  Bench bench;
  Builder builder;
  ValueId w = builder.variable("weights");
  auto executor = bench.make(builder.finish({builder.relu(w)}));

  std::string message;
  EXPECT_EQ(code_of([&] { executor->run({}); }, &message), StatusCode::kFailedPrecondition);
  EXPECT_EQ(message,
            "variable \"weights\" (float32[2, 2]) is not initialized; assign it a value or run its initializer first");
}

TEST(Executor, InitializesAVariableThatAProgramFills) {
  Bench bench;
  Builder builder;
  ValueId w = builder.variable("w");
  builder.op("aten::fill_.Scalar", {ref(w), {7.0}});
  auto executor = bench.make(builder.finish({}));

  executor->run({});

  EXPECT_TRUE(torch::equal(bench.variables.find("w")->read(), torch::full({2, 2}, 7.0F)));
}

TEST(Executor, FreesTheVariablesOfARunThatFails) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  auto executor = bench.make_adder({DType::kFloat, {3}});

  std::string message;
  EXPECT_EQ(code_of([&] { executor->run({torch::ones({3})}); }, &message), StatusCode::kInvalidArgument);

  EXPECT_NE(message.find("op aten::add_.Tensor (instruction 0 of program \"step\") on " + std::string(kCpu0)),
            std::string::npos)
      << message;
  EXPECT_TRUE(torch::equal(cell->read(), torch::ones({2, 2})));  // would wait for ever if the run still held it
}

TEST(Executor, RefusesArgumentsOfTheWrongKind) {
  Bench bench;
  Builder builder;
  ValueId x = builder.argument();
  auto executor = bench.make(builder.finish({builder.relu(x)}));

  std::string message;
  EXPECT_EQ(code_of([&] { executor->run({torch::ones({2, 2}, torch::kDouble)}); }, &message),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(message, "program \"step\": argument 0 is float64[2, 2], expected float32[2, 2]");
  EXPECT_EQ(code_of([&] { executor->run({}); }, &message), StatusCode::kInvalidArgument);
  EXPECT_EQ(message, "program \"step\" takes 1 tensors, got 0");
}

TEST(Executor, RunsTwoDevicesAndCopiesBetweenThem) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  Builder builder;
  ValueId x = builder.argument(), w = builder.variable("w", kCpu1);
  ValueId there = builder.add(x, w, kCpu1);
  ValueId here = builder.relu(there, kCpu0);
  builder.add_(w, here, kCpu0);
  auto executor = bench.make(builder.finish({here}));
  Profile profile;

  for (int i = 0; i < 50; ++i) executor->run({torch::zeros({2, 2})}, {.profile = i == 0 ? &profile : nullptr});

  EXPECT_TRUE(torch::equal(cell->read(), torch::full({2, 2}, std::pow(2.0, 50)).to(torch::kFloat)));
  std::set<std::string> devices;
  for (const Profile::Event& event : profile.events()) devices.insert(event.device);
  EXPECT_EQ(devices, (std::set<std::string>{kCpu0, kCpu1}));
}

TEST(Executor, ReportsTheFailureOfOneDeviceAndLetsTheOtherGo) {
  Bench bench;
  Builder builder;
  ValueId x = builder.argument(), bad = builder.argument({DType::kFloat, {3}});
  ValueId there = builder.add(x, bad, kCpu1);
  ValueId here = builder.relu(there, kCpu0);
  auto executor = bench.make(builder.finish({here}));

  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(code_of([&] { executor->run({torch::ones({2, 2}), torch::ones({3})}); }), StatusCode::kInvalidArgument);
  }
}

TEST(Executor, StopsBetweenInstructionsWhenCancelled) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  auto executor = bench.make_adder();
  Cancellation cancellation;
  cancellation.cancel(Status(StatusCode::kCancelled, "enough"));

  EXPECT_EQ(code_of([&] { executor->run({torch::ones({2, 2})}, {.cancellation = &cancellation}); }),
            StatusCode::kCancelled);
  EXPECT_TRUE(torch::equal(cell->read(), torch::ones({2, 2})));
}

TEST(Executor, ServesManyThreadsWithoutLosingAnUpdate) {
  Bench bench;
  auto cell = bench.variable("w", 0);
  auto executor = bench.make_adder();
  constexpr int kThreads = 8, kRuns = 50;

  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRuns; ++i) {
          executor->run({torch::ones({2, 2})});
          at::Tensor seen = cell->read();
          EXPECT_TRUE(torch::equal(seen, seen[0][0].expand({2, 2})));  // never half an update
        }
      });
    }
  }

  EXPECT_TRUE(torch::equal(cell->read(), torch::full({2, 2}, 1.0F * kThreads * kRuns)));
}

TEST(Executor, DrawsOtherNumbersForOtherStepsAndReplicas) {
  Bench bench;
  Builder builder;
  builder.program.seed = 42;
  ValueId x = builder.argument({DType::kFloat, {64}});
  ValueId drawn = builder.op("aten::bernoulli_.float", {ref(x), {0.5}, {None{}}});
  auto executor = bench.make(builder.finish({drawn}));
  auto draw = [&](uint64_t step, uint64_t replica) {
    return executor->run({torch::zeros({64})}, {.step = step, .replica = replica}).at(0).clone();
  };

  at::Tensor first = draw(0, 0);

  EXPECT_TRUE(torch::equal(first, draw(0, 0)));
  EXPECT_FALSE(torch::equal(first, draw(1, 0)));
  EXPECT_FALSE(torch::equal(first, draw(0, 1)));
}

TEST(Executor, KeepsConstantsAsTheyAreWhenTheProgramOrTheCallerWritesToThem) {
  Bench bench;
  Builder builder;
  ValueId written = builder.constant(1.0, /*is_number=*/false), returned = builder.constant(5.0, /*is_number=*/false);
  ValueId sum = builder.op("aten::add_.Tensor", {ref(written), ref(returned), integer(1)});
  auto executor = bench.make(builder.finish({sum, returned}));

  for (int i = 0; i < 3; ++i) {
    auto outputs = executor->run({});
    EXPECT_EQ(outputs.at(0).item<double>(), 6);
    EXPECT_EQ(outputs.at(1).item<double>(), 5);
    outputs.at(1).fill_(100);
  }
}

TEST(Executor, RunsALoopAsOneExecution) {
  Bench bench;
  auto counter = bench.variable("counter", 0);
  auto executor = bench.make(testing_support::loop_program());

  std::vector<at::Tensor> outputs = executor->run({torch::ones({2, 2}), torch::full({2, 2}, 2.0F)});

  EXPECT_TRUE(torch::equal(outputs.at(0), torch::full({2, 2}, 7.0F)));  // 1 + 3 * 2
  EXPECT_TRUE(torch::equal(counter->read(), torch::full({2, 2}, 6.0F)));
}

TEST(Executor, OverwritesAnOperandOnlyIfNobodySeesItAgain) {
  Bench bench;
  Builder builder;
  ValueId x = builder.argument();
  ValueId sum = builder.add(x, x);
  ValueId view = builder.op("aten::t", {ref(sum)});
  ValueId rectified = builder.relu(sum);            // the last use of `sum`, but `view` shows its memory
  ValueId again = builder.relu(builder.add(x, x));  // nobody else sees this sum
  auto executor = bench.make(builder.finish({view, rectified, again}));
  at::Tensor input = torch::tensor({{-1.0F, 2.0F}, {3.0F, -4.0F}});

  std::vector<at::Tensor> outputs = executor->run({input});

  EXPECT_TRUE(torch::equal(outputs.at(0), (input + input).t()));
  EXPECT_TRUE(torch::equal(outputs.at(1), torch::relu(input + input)));
  EXPECT_TRUE(torch::equal(outputs.at(2), outputs.at(1)));
}

Program copy_to_w() {
  Builder builder;
  ValueId w = builder.variable("w"), x = builder.argument();
  builder.op("aten::copy_", {ref(w), ref(x), {false}});
  return builder.finish({});
}

TEST(Executor, GivesAVariableTheMemoryOfAValueThatNobodyElseHas) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  auto executor = bench.make(copy_to_w());
  std::vector<at::Tensor> given{torch::full({2, 2}, 2.0F)};
  const void* memory = given[0].data_ptr();

  executor->run(std::move(given));

  EXPECT_EQ(cell->read().data_ptr(), memory);
  EXPECT_TRUE(torch::equal(cell->read(), torch::full({2, 2}, 2.0F)));
}

TEST(Executor, CopiesIntoAVariableWhatIsStillSomebodyElses) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  auto executor = bench.make(copy_to_w());
  auto is_copied = [&](at::Tensor given, const at::Tensor& seen) {
    const at::Tensor expected = seen.clone();
    executor->run({std::move(given)});
    EXPECT_TRUE(torch::equal(cell->read(), expected));
    EXPECT_NE(cell->read().data_ptr(), seen.data_ptr());
  };

  at::Tensor kept = torch::full({2, 2}, 2.0F);
  is_copied(kept, kept);
  at::Tensor larger = torch::arange(8.0F).view({4, 2});
  is_copied(larger.narrow(0, 2, 2), larger.narrow(0, 2, 2));
  std::array<float, 4> mine{1, 2, 3, 4};
  const at::Tensor blob = torch::from_blob(mine.data(), {2, 2});
  is_copied(torch::from_blob(mine.data(), {2, 2}), blob);
}

TEST(Executor, CopiesIntoAVariableThatTheProgramLooksAtAgain) {
  Bench bench;
  auto cell = bench.variable("w", 1);
  Builder builder;
  ValueId w = builder.variable("w"), x = builder.argument();
  ValueId view = builder.op("aten::t", {ref(w)});
  builder.op("aten::copy_", {ref(w), ref(x), {false}});
  ValueId seen = builder.add(view, view);
  auto executor = bench.make(builder.finish({seen}));

  std::vector<at::Tensor> outputs = executor->run({torch::full({2, 2}, 3.0F)});

  EXPECT_TRUE(torch::equal(outputs.at(0), torch::full({2, 2}, 6.0F)));
}

TEST(Executor, PutsAResultWhereTheLastOperandWasIfItIsOfTheSameKind) {
  Bench bench;
  Builder builder;
  const TensorSpec large{DType::kFloat, {256, 1024}};  // 1 MiB
  ValueId x = builder.argument(large), y = builder.argument(large);
  ValueId value = builder.add(x, y);
  for (int i = 0; i < 3; ++i) value = builder.add(value, y);
  auto executor = bench.make(builder.finish({value}));
  const at::Tensor zeros = torch::zeros({256, 1024}), ones = torch::ones({256, 1024});
  MemoryPool::Budget budget(3 << 19);  // there is no room for two at once
  MemoryPool::Use use({.pooled = true, .budget = &budget});

  const at::Tensor sum = executor->run({zeros, ones}).at(0);

  EXPECT_EQ(sum.const_data_ptr<float>()[0], 4);
}

TEST(Executor, WritesToNoMemoryThatWasOnlyLent) {
  Bench bench;
  Builder builder;
  const TensorSpec four{DType::kFloat, {4}};
  const ValueId x = builder.argument(four), y = builder.argument(four);
  auto executor = bench.make(builder.finish({builder.add(x, y)}));
  std::array<float, 4> numbers{1, 1, 1, 1};
  std::vector<at::Tensor> arguments{at::from_blob(numbers.data(), {4}), torch::ones({4})};

  const at::Tensor sum = executor->run(std::move(arguments)).at(0);

  EXPECT_TRUE(torch::equal(sum, torch::full({4}, 2.0F)));
  EXPECT_THAT(numbers, ::testing::Each(1));
}

// Notes of what it is given whether anybody else has it.
class LookingGroup : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string described(int rank) const override { return str_cat("rank ", rank); }
  std::vector<at::Tensor> run(const CollectiveCall&, std::vector<at::Tensor> values, const Cancellation*) override {
    return values;
  }
  void start(const CollectiveCall& call, std::vector<at::Tensor> values, const Cancellation*,
             CollectiveDone done) override {
    alone[call.purpose] = nobody_else_sees(values.at(0), false);
    done({}, {values[0].clone()});
  }
  void fail(const Status& why) override { ADD_FAILURE() << why; }

  std::map<std::string, bool> alone;  // by purpose
};

TEST(Executor, HandsOverToAGroupWhatNobodyElseNeeds) {
  Bench bench;
  Builder builder;
  const ValueId x = builder.argument();
  const auto sum = [&](ValueId value, const std::string& purpose) {
    const size_t made = builder.instruction(
        kCollective.name, {refs({value}), integer(1), integer(0), integer(0), integer(0), {purpose}}, {1});
    return builder.program.instructions[made].results[0][0];
  };
  const ValueId last = sum(builder.relu(x), "last use"), kept = builder.add(x, x), of_kept = sum(kept, "used again"),
                again = builder.relu(kept), of_argument = sum(x, "of the caller"), other = builder.relu(x);
  // What the step behind a collective needs at once is not begun, but waited for.
  Program program = builder.finish({builder.add(builder.add(last, of_kept), builder.add(of_argument, again)), other});
  check(program);
  program =
      place(std::move(program), {.devices = bench.devices.names(), .default_device = bench.devices.default_name()});
  const auto group = std::make_shared<LookingGroup>();
  Executor executor(std::move(program), bench.devices, bench.catalog, bench.variables, nullptr,
                    {.group = [&](uint64_t) { return group; }});
  const at::Tensor ones = torch::ones({2, 2});

  const at::Tensor result = executor.run({ones}).at(0);

  EXPECT_TRUE(torch::equal(result, torch::full({2, 2}, 6.0F)));
  EXPECT_EQ(group->alone,
            (std::map<std::string, bool>{{"last use", true}, {"of the caller", false}, {"used again", false}}));
}

TEST(Executor, FreesTensorsAtTheirLastUse) {
  Bench bench;
  Builder builder;
  ValueId x = builder.argument({DType::kFloat, {1024, 1024}});
  ValueId value = x;
  for (int i = 0; i < 64; ++i) value = builder.relu(value);
  auto executor = bench.make(builder.finish({value}));
  auto peak_mib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stol(line.substr(6)) / 1024;
    }
    return 0L;
  };
  at::Tensor input = torch::ones({1024, 1024});
  executor->run({input});
  const long before = peak_mib();

  executor->run({input});

  EXPECT_LT(peak_mib() - before, 64) << "64 tensors of 4 MiB were kept";
}

}  // namespace
}  // namespace muster
