#include "muster/runtime/worker/read_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/placement/split.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::read_ahead_test {
namespace {

using namespace testing_support;

const std::string kWorker = "/job:worker/replica:0/task:0";
const std::array<std::string, 2> kPs{"/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"};
const std::array<std::string, 2> kNames{"v", "w"};  // of their variables
constexpr const char* kCpu = "/device:CPU:0";
constexpr uint64_t kSequence = 7;

// A task that counts its calls, and to which something happens before one of them.
class CalledWorker : public LocalWorker {
 public:
  explicit CalledWorker(const std::string& task) : LocalWorker({.devices = {.task = task, .gpus = false}}) {}

  std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& given) override {
    RunOptions options = given;
    if (++calls == special) before(options);
    return LocalWorker::run(handle, std::move(arguments), options);
  }
  void start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
             RunDone done) override {
    std::vector<at::Tensor> outputs;
    try {
      outputs = run(handle, std::move(arguments), options);
    } catch (const Error& error) {
      return done(error.status(), {});
    }
    done({}, std::move(outputs));
  }

  std::atomic<int> calls = 0;
  int special = 0;  // counted from 1
  std::function<void(RunOptions&)> before{};
};

// A worker with two parameter servers, which have a variable each.
class Job : public Peers {
 public:
  Job() {
    for (size_t i = 0; i < kPs.size(); ++i) {
      ps_.push_back(std::make_shared<CalledWorker>(kPs[i]));
      ps_.back()->store().declare(kNames[i], {DType::kFloat, {2, 2}}, at::kCPU)->assign(torch::full({2, 2}, 0.1F));
    }
    worker_.emplace(LocalWorkerOptions{.devices = {.task = kWorker, .gpus = false}}, this);
  }

  std::shared_ptr<Worker> worker(const std::string& task) override { return ps_[task == kPs[0] ? 0 : 1]; }
  CalledWorker& ps(int index) { return *ps_[index]; }
  LocalWorker& worker() { return *worker_; }
  at::Tensor value(int index) { return ps(index).store().find(kNames[index])->read().clone(); }
  void before_call(int index, int call, std::function<void(RunOptions&)> happens) {
    ps(index).special = ps(index).calls + call;
    ps(index).before = std::move(happens);
  }

  ProgramHandle add(Program program) {
    check(program);
    std::vector<std::string> devices{kWorker + kCpu};
    for (const std::string& task : kPs) devices.push_back(task + kCpu);
    return worker_->register_program(
        split(place(std::move(program), {.devices = devices, .default_device = kWorker + kCpu}), kWorker));
  }
  // y = x + the variables of so many servers; adds `factor` times y to them, if that is not 0, and returns y.
  ProgramHandle add_step(int servers = 2, int64_t factor = 1) {
    Builder b;
    ValueId y = b.argument();
    std::vector<ValueId> variables;
    for (int i = 0; i < servers; ++i) variables.push_back(b.variable(kNames[i], kPs[i] + kCpu));
    for (ValueId variable : variables) y = b.add(y, variable, kWorker + kCpu);
    for (ValueId variable : variables) {
      if (factor != 0) b.op("aten::add_.Tensor", {ref(variable), ref(y), integer(factor)});
    }
    return add(b.finish({y}));
  }

  std::vector<RunOutcome> run(std::vector<ProgramRun> runs, const RunOptions& options = {.sequence = kSequence}) {
    std::vector<RunOutcome> all;
    worker_->run_in_turn(std::move(runs), options,
                         [&](std::vector<RunOutcome> outcomes) { all = std::move(outcomes); });
    return all;
  }

 private:
  std::vector<std::shared_ptr<CalledWorker>> ps_;
  std::optional<LocalWorker> worker_;
};

ProgramRun run_of(ProgramHandle step, float x = 0.3F) {
  return {.handle = step, .arguments = {torch::full({2, 2}, x)}};
}

TEST(ReadAheads, MakeOneCallPerTaskAndStepAndChangeNoResult) {
  constexpr int kSteps = 20;
  Job together, alone;
  const ProgramHandle step = together.add_step(), same = alone.add_step();

  const std::vector<RunOutcome> outcomes = together.run(std::vector(kSteps, run_of(step)));

  for (const RunOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    EXPECT_TRUE(torch::equal(outcome.outputs.at(0), alone.worker().run(same, run_of(same).arguments).at(0)));
  }
  for (int i : {0, 1}) {
    EXPECT_TRUE(torch::equal(together.value(i), alone.value(i)));
    EXPECT_EQ(together.ps(i).calls, kSteps + 1);
    EXPECT_EQ(alone.ps(i).calls, 2 * kSteps);
  }
}

TEST(ReadAheads, AreForTheNextMessageIfItWaits) {
  Job job;
  const ProgramHandle step = job.add_step(1);
  std::vector<RunOutcome> second;
  job.before_call(0, 2, [&](RunOptions& options) {
    EXPECT_EQ(options.then, 0u) << "nobody waited when the call was made";
    job.worker().run_in_turn({run_of(step), run_of(step)}, {.sequence = kSequence},
                             [&](std::vector<RunOutcome> outcomes) { second = std::move(outcomes); });
  });
  job.run({run_of(step)});
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(job.ps(0).calls, 2 + 3) << "it came too late for the first message";

  job.before_call(0, 1, [&](RunOptions&) {
    job.worker().run_in_turn({run_of(step)}, {.sequence = kSequence},
                             [&](std::vector<RunOutcome> outcomes) { second = std::move(outcomes); });
  });
  job.run({run_of(step)});

  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(job.ps(0).calls, 2 + 3 + 3);
  EXPECT_TRUE(torch::allclose(second[0].outputs[0] + second[0].outputs[0] - 0.3, job.value(0)));
}

TEST(ReadAheads, AreWhatTheNextProgramReads) {
  Job job;
  const ProgramHandle both = job.add_step(2), first = job.add_step(1, -2), reading = job.add_step(2, 0);

  const std::vector<RunOutcome> outcomes = job.run({run_of(both), run_of(first), run_of(reading), run_of(both)});

  Job alone;
  const ProgramHandle same_both = alone.add_step(2), same_first = alone.add_step(1, -2);
  const ProgramHandle same_reading = alone.add_step(2, 0);
  const std::array order{same_both, same_first, same_reading, same_both};
  for (size_t i = 0; i < order.size(); ++i) {
    const at::Tensor expected = alone.worker().run(order[i], run_of(order[i]).arguments).at(0);
    EXPECT_TRUE(torch::equal(outcomes[i].outputs.at(0), expected)) << i;
  }
  EXPECT_EQ(job.ps(0).calls, 5) << "read; write, read; write, read; read by the last one itself; write";
  EXPECT_EQ(job.ps(1).calls, 5) << "read; write; read by the third itself; read by the last itself; write";
}

TEST(ReadAheads, AreNotMadeAfterAWriteThatFails) {
  Job job;
  const ProgramHandle step = job.add_step(1);
  job.before_call(0, 2, [](RunOptions&) { throw invalid_argument("no"); });

  const std::vector<RunOutcome> outcomes = job.run({run_of(step), run_of(step), run_of(step)});

  EXPECT_EQ(outcomes[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(outcomes[1].status.ok() && outcomes[2].status.ok());
  EXPECT_EQ(job.ps(0).calls, 2 + 3);
  EXPECT_TRUE(torch::allclose(outcomes[1].outputs[0], torch::full({2, 2}, 0.4F)));
  EXPECT_TRUE(torch::allclose(outcomes[2].outputs[0], torch::full({2, 2}, 0.8F)));
}

TEST(ReadAheads, OfAStepThatFailsElsewhereAreDropped) {
  Job job;
  const ProgramHandle step = job.add_step();
  job.before_call(1, 2, [&](RunOptions&) { throw invalid_argument("no"); });

  const std::vector<RunOutcome> outcomes = job.run({run_of(step), run_of(step)});

  EXPECT_EQ(outcomes[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(outcomes[1].status.ok());
  EXPECT_EQ(job.ps(0).calls, 4);
  EXPECT_EQ(job.ps(1).calls, 4);
}

TEST(ReadAheads, ThatFailAreMadeByTheStepItself) {
  Job job;
  const ProgramHandle step = job.add_step(1);
  job.before_call(0, 2, [](RunOptions& options) { options.then = 1; });  // which is no program

  const std::vector<RunOutcome> outcomes = job.run({run_of(step), run_of(step)});

  EXPECT_TRUE(outcomes[0].status.ok() && outcomes[1].status.ok());
  EXPECT_EQ(job.ps(0).calls, 4);
  EXPECT_TRUE(torch::allclose(outcomes[1].outputs[0], torch::full({2, 2}, 0.8F)));
}

TEST(ReadAheads, ForAStepThatDoesNotRunAreNotTheNextOnes) {
  Job job;
  const ProgramHandle step = job.add_step(1);

  const std::vector<RunOutcome> outcomes = job.run({run_of(step), {.handle = step}, run_of(step)});

  EXPECT_FALSE(outcomes[1].status.ok()) << "it lacks its argument";
  EXPECT_EQ(job.ps(0).calls, 4);
  EXPECT_TRUE(torch::allclose(outcomes[2].outputs[0], torch::full({2, 2}, 0.8F)));
}

TEST(ReadAheads, ForAMessageThatIsCancelledChangeNothing) {
  constexpr uint64_t kMeeting = 99;
  Job job;
  const ProgramHandle step = job.add_step(1);
  std::vector<RunOutcome> second;
  job.before_call(0, 1, [&](RunOptions&) {
    job.worker().run_in_turn({run_of(step)}, {.meeting = kMeeting, .sequence = kSequence},
                             [&](std::vector<RunOutcome> outcomes) { second = std::move(outcomes); });
    job.worker().abort(kMeeting, Status(StatusCode::kCancelled, "no longer wanted"));
  });

  const std::vector<RunOutcome> outcomes = job.run({run_of(step)});

  EXPECT_TRUE(outcomes[0].status.ok());
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(job.ps(0).calls, 2);
  EXPECT_TRUE(torch::allclose(job.value(0), torch::full({2, 2}, 0.5F)));
}

TEST(ReadAheads, OfRunsThatAreNotInALineAreThoseOfOneMessage) {
  Job job;
  const ProgramHandle step = job.add_step(1);

  job.run({run_of(step), run_of(step)}, {});
  job.run({run_of(step)}, {});

  EXPECT_EQ(job.ps(0).calls, 3 + 2);
}

// Elements of which the second takes longer than a call.
class SlowSource : public ElementSource {
 public:
  std::optional<Element> next() override {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(++taken_ == 2 ? 3 : 0);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return Element{torch::full({2, 2}, 0.3F)};
  }

 private:
  int taken_ = 0;
};

TEST(ReadAheads, AreNotUsedAfterALongWaitForInput) {
  Job job;
  job.worker().add_source(5, std::make_shared<SlowSource>());
  Builder b;
  const ValueId number = b.argument({DType::kLong, {}}), v = b.variable(kNames[0], kPs[0] + kCpu);
  const ValueId x = b.program.new_value();
  b.program.instructions.push_back(
      {.op = b.program.intern_op(kNext.name, kNext.schema),
       .device = b.program.intern_device(kWorker + kCpu),
       .arguments = {ref(number), integers({static_cast<int64_t>(DType::kFloat), 2, 2, 2})},
       .results = {{x}}});
  const ValueId y = b.add(x, v, kWorker + kCpu);
  b.add_(v, y);
  const ProgramHandle step = job.add(b.finish({y}));

  const std::vector<RunOutcome> outcomes =
      job.run(std::vector<ProgramRun>(2, {.handle = step, .arguments = {torch::tensor(int64_t{5})}}));

  for (const RunOutcome& outcome : outcomes) ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(job.ps(0).calls, 4);
  EXPECT_TRUE(torch::allclose(outcomes[1].outputs[0], torch::full({2, 2}, 0.8F)));
}

TEST(ReadAheads, OfAProgramThatIsGoneAreNotAskedFor) {
  Job job;
  const ProgramHandle step = job.add_step(1), gone = job.add_step(1);
  job.worker().deregister_program(gone);

  const std::vector<RunOutcome> outcomes = job.run({run_of(step), run_of(gone)});

  EXPECT_TRUE(outcomes[0].status.ok());
  EXPECT_EQ(outcomes[1].status.code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::read_ahead_test
