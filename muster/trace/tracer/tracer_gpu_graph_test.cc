// Steps that are recorded as CUDA graphs, held against the same steps one by one. Skipped on machines without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/gpu/gpu_graph.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"

namespace muster::tracer_gpu_graph_test {

namespace nn = torch::nn;
using ::testing::HasSubstr;
using testing_support::message_of;

class GpuGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (LocalDevices().names().size() == 1) GTEST_SKIP() << "no GPU, or MUSTER_GPUS=off";
    if (!GpuGraph::available()) GTEST_SKIP() << "this build has no CUDA graphs";
    torch::manual_seed(1);
  }
};

// A worker of its own for one program; a profile is asked for to have the steps one by one.
class Runner {
 public:
  Runner(const Program& program, const std::vector<Variable>& variables, bool one_by_one) : one_by_one_(one_by_one) {
    for (const Variable& variable : variables) {
      worker_.store()
          .declare(variable.name(), variable.state()->spec, at::Device(at::kCUDA, 0))
          ->assign(variable.value());
    }
    handle_ = worker_.register_program(program);
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> arguments, uint64_t step = 0) {
    Profile profile;
    return worker_.run(handle_, std::move(arguments), {.step = step, .profile = one_by_one_ ? &profile : nullptr});
  }
  at::Tensor variable(const std::string& name) { return worker_.store().find(name)->read(); }

 private:
  LocalWorker worker_{LocalWorkerOptions{}};
  const bool one_by_one_;
  ProgramHandle handle_;
};

at::Tensor on_gpu(const at::Tensor& tensor) { return tensor.to(at::kCUDA); }

// A net with batch norm and dropout, and gradient descent with momentum.
struct Training {
  Training() : net(nn::Linear(16, 64), nn::BatchNorm1d(64), nn::ReLU(), nn::Dropout(0.3), nn::Linear(64, 10)) {
    for (const Variable& variable : variables.trainable()) {
      momenta.push_back(Variable(torch::zeros_like(variable.value()), {.name = variable.name() + "_momentum"}));
    }
  }

  at::Tensor step(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
    const std::vector<Variable> trainable = variables.trainable();
    const std::vector<at::Tensor> gradients = gradient(loss, trainable);
    for (size_t i = 0; i < trainable.size(); ++i) {
      momenta[i].assign(momenta[i].value() * 0.9 + gradients[i]);
      Variable(trainable[i]).assign_sub(momenta[i].value() * 0.05);
    }
    return loss;
  }
  std::vector<Variable> all() const {
    std::vector<Variable> them = variables.all();
    them.insert(them.end(), momenta.begin(), momenta.end());
    return them;
  }

  nn::Sequential net;
  ModuleVariables variables = adopt(net);
  std::vector<Variable> momenta;
};

TEST_F(GpuGraphs, TrainAsTheStepsOneByOneDoBitForBit) {
  Training training;
  auto step = function([&](at::Tensor x, at::Tensor y) { return training.step(x, y); });
  const Program program = step.program(torch::rand({8, 16}), torch::zeros({8}, torch::kLong));
  Runner recorded(program, training.all(), false), one_by_one(program, training.all(), true);
  const uint64_t before = GpuGraph::replays();

  for (uint64_t i = 0; i < 12; ++i) {
    const at::Tensor x = on_gpu(torch::rand({8, 16})), y = on_gpu(torch::randint(10, {8}, torch::kLong));
    const at::Tensor loss = recorded.run({x, y}, i).at(0), expected = one_by_one.run({x, y}, i).at(0);
    EXPECT_TRUE(torch::equal(loss, expected)) << "step " << i << ": " << loss << expected;
  }

  EXPECT_EQ(GpuGraph::replays() - before, 9u);  // after two runs, and one that is recorded
  for (const Variable& variable : training.all()) {
    EXPECT_TRUE(torch::equal(recorded.variable(variable.name()), one_by_one.variable(variable.name())))
        << variable.name();
  }
}

TEST_F(GpuGraphs, AreRecordedOnStreamsThatNobodyElseTakes) {
  const at::Device device("cuda:0");
  const c10::impl::VirtualGuardImpl streams(device.type());
  std::vector<c10::Stream> taken;
  for (int i = 0; i < 100; ++i) taken.push_back(streams.getStreamFromGlobalPool(device));
  int64_t shared = 0;
  const GpuGraph graph(device, {}, [&] {
    for (const c10::Stream& stream : taken) {
      shared += stream == streams.getStream(device) || stream == GpuGraph::side_stream(device);
    }
    torch::ones({2}, device).add_(1);
  });

  EXPECT_EQ(shared, 0);
}

TEST_F(GpuGraphs, RecordALoopAsOne) {
  Training training;
  auto steps = function([&](at::Tensor x, at::Tensor y) {
    return repeat(
        5, [&](const at::Tensor&, const at::Tensor&) { return training.step(x, y).detach(); }, torch::zeros({}));
  });
  const at::Tensor x = on_gpu(torch::rand({8, 16})), y = on_gpu(torch::randint(10, {8}, torch::kLong));
  const Program program = steps.program(x.cpu(), y.cpu());
  Runner recorded(program, training.all(), false), one_by_one(program, training.all(), true);
  const uint64_t before = GpuGraph::replays();

  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(
        torch::equal(recorded.run({on_gpu(x), on_gpu(y)}, i).at(0), one_by_one.run({on_gpu(x), on_gpu(y)}, i).at(0)));
  }

  EXPECT_EQ(GpuGraph::replays() - before, 2u);
}

TEST_F(GpuGraphs, GiveResultsThatTheNextRunLeavesAlone) {
  auto steps = function([](at::Tensor x) { return ((x + 1) * 2).exp().sqrt() - 3; });
  Runner runner(steps.program(torch::zeros({4})), {}, false);
  std::vector<at::Tensor> results;

  for (int i = 0; i < 6; ++i) results.push_back(runner.run({on_gpu(torch::full({4}, i * 0.1))}).at(0));

  for (int i = 0; i < 6; ++i) {
    const at::Tensor x = torch::full({4}, i * 0.1);
    EXPECT_TRUE(torch::allclose(results[i].cpu(), ((x + 1) * 2).exp().sqrt() - 3)) << i;
  }
}

TEST_F(GpuGraphs, FollowAVariableToOtherMemory) {
  Variable sum(torch::zeros({4}), {.name = "sum"});
  auto steps = function([&](at::Tensor x) {
    sum.assign_add((x * 2 + 1).relu() - 1);
    return sum.value().sum();
  });
  Runner runner(steps.program(torch::zeros({4})), {sum}, false);
  const at::Tensor x = on_gpu(torch::ones({4}));
  std::vector<at::Tensor> held;

  for (int i = 1; i <= 200; ++i) {
    EXPECT_EQ(runner.run({x}).at(0).item().toDouble(), 4 * 2 * i);
    if (i % 40 == 0) held.push_back(runner.variable("sum"));  // a writer goes on with a copy
  }

  for (size_t i = 0; i < held.size(); ++i)
    EXPECT_EQ(held[i][0].item().toDouble(), 2.0 * 40 * static_cast<double>(i + 1));
}

TEST_F(GpuGraphs, TellOfAnIndexOutOfRangeInALaterRun) {
  Variable table(torch::rand({4, 2}), {.name = "table"});
  auto steps = function([&](at::Tensor ids) { return (table.value().index_select(0, ids) * 2 + 1).relu().sum() - 1; });
  const at::Tensor good = on_gpu(torch::tensor({3, 0}, torch::kLong)), ids = good.clone();
  Runner runner(steps.program(torch::zeros({2}, torch::kLong)), {table}, false);
  const at::Tensor expected = runner.run({ids}).at(0);
  for (int i = 0; i < 4; ++i) runner.run({ids});

  ids[0] = 4;
  runner.run({ids});
  torch::cuda::synchronize();
  ids[0] = 3;

  EXPECT_THAT(message_of([&] { runner.run({ids}); }),
              HasSubstr("index has an element that is not at least 0 and below 4"));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(torch::equal(runner.run({ids}).at(0), expected));
}

TEST_F(GpuGraphs, AreThrownAwayWhileOthersAreRecorded) {
  Variable table(torch::rand({4, 2}), {.name = "table"});
  auto steps = function([&](at::Tensor ids) { return (table.value().index_select(0, ids) * 2 + 1).relu().sum() - 1; });
  const Program program = steps.program(torch::zeros({2}, torch::kLong));
  const LogCapture log;
  std::atomic<int> failed = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          try {
            Runner runner(program, {table}, false);
            for (int i = 0; i < 5; ++i) runner.run({on_gpu(torch::tensor({3, 0}, torch::kLong))});
            at::empty({1 << 20}, at::TensorOptions(at::kByte).pinned_memory(true));
          } catch (const std::exception& error) {
            if (failed++ == 0) ADD_FAILURE() << error.what();
          }
        }
      });
    }
  }
  EXPECT_EQ(failed, 0);
  EXPECT_FALSE(log.contains("step by step")) << "all were recorded";
}

TEST_F(GpuGraphs, LeaveOutWhatLooksAtTheGpu) {
  auto steps = function([](at::Tensor x, at::Tensor index) {
    const at::Tensor many = ((x * 2 - 1).relu() + 1).sqrt();
    return (((element(many, index) * 2) + 1).sqrt() - 1) * 3;
  });
  const at::Tensor x = torch::rand({64}), index = torch::tensor(5, torch::kLong);
  const at::Tensor expected = ((((((x[5] * 2 - 1).relu() + 1).sqrt()) * 2) + 1).sqrt() - 1) * 3;
  Runner runner(steps.program(x, index), {}, false);
  const uint64_t before = GpuGraph::replays();

  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(torch::allclose(runner.run({on_gpu(x), on_gpu(index)}).at(0).cpu(), expected));
  }

  EXPECT_GT(GpuGraph::replays(), before);
}

TEST_F(GpuGraphs, GoOnOneByOneWhereCudaCannotRecord) {
  // Looks at the GPU for whether its operand was positive definite, which no schema says.
  auto steps =
      function([](at::Tensor x) { return torch::linalg_cholesky((x * 1 + 0).matmul(x.t()) + torch::eye(4)).sum(); });
  const at::Tensor x = torch::rand({4, 4});
  const at::Tensor expected = torch::linalg_cholesky(x.matmul(x.t()) + torch::eye(4)).sum();
  Runner runner(steps.program(x), {}, false);

  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(torch::allclose(runner.run({on_gpu(x)}).at(0).cpu(), expected, 1e-3, 1e-4));
  }
  // The random streams of the GPU and its memory are as before.
  EXPECT_TRUE(torch::rand({8}, at::kCUDA).sum().item().toDouble() > 0);
  auto others = function([](at::Tensor y) { return ((y + 1) * 2 - 1).relu().sum(); });
  Runner next(others.program(x), {}, false);
  const uint64_t before = GpuGraph::replays();
  const at::Tensor same = on_gpu(x);
  for (int i = 0; i < 4; ++i) next.run({same});
  EXPECT_EQ(GpuGraph::replays() - before, 1u);
}

}  // namespace muster::tracer_gpu_graph_test
