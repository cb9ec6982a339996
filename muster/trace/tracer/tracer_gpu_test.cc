// Programs that were recorded on the CPU, replayed on a GPU. Skipped on machines without one.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"

namespace muster {
namespace {

namespace nn = torch::nn;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (LocalDevices().names().size() == 1) GTEST_SKIP() << "no GPU, or MUSTER_GPUS=off";
  }

  // Runs a step on a worker with two logical devices per GPU and compares it with the same step on the CPU.
  template <class Step>
  static void compare(nn::Sequential net, const Step& make_step, const std::vector<at::Tensor>& arguments) {
    ModuleVariables variables = adopt(net);
    auto step = make_step(net, variables);
    LocalWorker worker({.devices = {.per_gpu = 2}});
    ASSERT_NE(worker.devices().default_name().find("GPU:0"), std::string::npos);
    Program program = step.program(arguments[0], arguments[1]);
    for (const Variable& variable : variables.all()) {
      worker.store()
          .declare(variable.name(), variable.state()->spec, at::Device(at::kCUDA, 0))
          ->assign(variable.value());
    }
    ProgramHandle handle = worker.register_program(program);

    for (int i = 0; i < 3; ++i) {
      at::Tensor there = worker.run(handle, arguments).at(0);
      at::Tensor here = step(arguments[0], arguments[1]);

      EXPECT_TRUE(there.is_cuda());
      EXPECT_TRUE(torch::allclose(there.cpu(), here, 1e-3, 1e-4)) << "step " << i << ": " << there << here;
    }
    for (const Variable& variable : variables.all()) {
      at::Tensor there = worker.store().find(variable.name())->read().cpu();
      EXPECT_TRUE(torch::allclose(there, variable.value(), 1e-2, 1e-3)) << variable.name();
    }
  }

  static at::Tensor train(const at::Tensor& loss, const ModuleVariables& variables) {
    const std::vector<Variable> trainable = variables.trainable();
    const std::vector<at::Tensor> gradients = gradient(loss, trainable);
    for (size_t i = 0; i < trainable.size(); ++i) {
      Variable variable = trainable[i];
      variable.assign_sub(gradients[i] * 0.01);
    }
    return loss;
  }
};

TEST_F(Gpu, TrainsAConvolutionalNetAsTheCpuDoes) {
  torch::manual_seed(1);
  compare(nn::Sequential(nn::Conv2d(1, 8, 3), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                         nn::Linear(8 * 7 * 7, 10)),
          [](nn::Sequential net, const ModuleVariables& variables) {
            return function([net, &variables](at::Tensor x, at::Tensor y) mutable {
              return train(torch::cross_entropy_loss(net->forward(x), y), variables);
            });
          },
          {torch::rand({16, 1, 16, 16}), torch::randint(10, {16}, torch::kLong)});
}

TEST_F(Gpu, SplitsANetOverTwoLogicalDevicesOfOneGpu) {
  torch::manual_seed(1);
  compare(nn::Sequential(nn::Linear(16, 32), nn::Linear(32, 4)),
          [](nn::Sequential net, const ModuleVariables& variables) {
            return function([net, &variables](at::Tensor x, at::Tensor y) mutable {
              at::Tensor hidden;
              {
                DeviceScope first("/device:GPU:0");
                hidden = torch::relu(net[0]->as<nn::Linear>()->forward(x));
              }
              DeviceScope second("/device:GPU:1");
              return train(torch::mse_loss(net[1]->as<nn::Linear>()->forward(hidden), y), variables);
            });
          },
          {torch::rand({8, 16}), torch::rand({8, 4})});
}

TEST_F(Gpu, RunsAttentionAndLstmThatWereTracedToBePortable) {
  torch::manual_seed(1);
  nn::LSTM lstm(nn::LSTMOptions(8, 8).batch_first(true));
  ModuleVariables variables = adopt(*lstm);
  auto forward = function(
      [&](at::Tensor x) {
        at::Tensor out = std::get<0>(lstm->forward(x));
        return at::scaled_dot_product_attention(out.unsqueeze(1), out.unsqueeze(1), out.unsqueeze(1)).sum();
      },
      {.portable = true});
  at::Tensor x = torch::rand({4, 5, 8});
  LocalWorker worker;
  for (const Variable& variable : variables.all()) {
    worker.store().declare(variable.name(), variable.state()->spec, at::Device(at::kCUDA, 0))->assign(variable.value());
  }

  at::Tensor there = worker.run(worker.register_program(forward.program(x)), {x}).at(0);

  EXPECT_TRUE(torch::allclose(there.cpu(), forward(x), 1e-3, 1e-4));
}

// CUDA would assert in the kernel, and nothing on the GPU of this process would work any more.
TEST_F(Gpu, SurvivesAnIndexThatIsOutOfRange) {
  LocalWorker worker{LocalWorkerOptions{}};
  auto pick = function([](const at::Tensor& table, const at::Tensor& ids) { return table.index_select(0, ids); });
  const at::Tensor table = torch::rand({4, 2}), good = torch::tensor({3, 0}, torch::kLong);
  const ProgramHandle handle = worker.register_program(pick.program(table, good));

  EXPECT_THROW(worker.run(handle, {table, torch::tensor({4, 0}, torch::kLong)}), Error);
  EXPECT_TRUE(torch::equal(worker.run(handle, {table, good}).at(0).cpu(), table.index_select(0, good)));
}

TEST_F(Gpu, RunsALoopWhoseBodyUsesItsIndex) {
  LocalWorker worker{LocalWorkerOptions{}};
  auto sum = function([](const at::Tensor& start) {
    return repeat(5, [](const at::Tensor& trip, const at::Tensor& total) { return total + trip; }, start);
  });
  const ProgramHandle handle = worker.register_program(sum.program(torch::zeros({}, torch::kLong)));

  EXPECT_EQ(worker.run(handle, {torch::zeros({}, torch::kLong)}).at(0).item().toLong(), 10);
}

TEST_F(Gpu, LeavesAnOpThatHasNoKernelThereToTheCpu) {
  const at::Tensor x = torch::rand({1000});
  auto counts = function([](at::Tensor values) { return std::get<0>(torch::histogram(values * 2, 4)) + 1; });
  EXPECT_TRUE(torch::equal(counts(x.cuda()).cpu(), std::get<0>(torch::histogram(x * 2, 4)) + 1));
}

TEST_F(Gpu, RefusesToTakeMoreMemoryThanItMayHave) {
  struct All {
    ~All() { LocalDevices({.gpu_memory = int64_t{32} << 30}); }
  } afterwards;
  LocalWorker worker({.devices = {.per_gpu = 2, .gpu_memory = int64_t{256} << 20}});
  auto fill = function([](const at::Tensor& row) { return row.expand({1 << 16, 1 << 14}) + 1; });
  const at::Tensor row = torch::zeros({1 << 14});
  const ProgramHandle handle = worker.register_program(fill.program(row));
  try {
    worker.run(handle, {row});
    FAIL() << "had 4 GiB of 512 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kResourceExhausted) << error.what();
  }
}

TEST_F(Gpu, ProfilesWhatItHasDoneAndNotWhatItWasTold) {
  LocalWorker worker{LocalWorkerOptions{}};
  auto multiply = function([](at::Tensor x) {
    for (int i = 0; i < 20; ++i) x = torch::mm(x, x);
    return x;
  });
  const at::Tensor x = torch::zeros({4096, 4096});
  const ProgramHandle handle = worker.register_program(multiply.program(x));
  const at::Device device = worker.devices().device(worker.devices().default_name());
  const c10::impl::VirtualGuardImpl streams(device.type());
  worker.run(handle, {x});
  Profile profile;

  const at::Tensor result = worker.run(handle, {x}, {.profile = &profile}).at(0);

  EXPECT_TRUE(streams.queryStream(streams.getStream(device))) << "it is still at work";
  EXPECT_GE(profile.events().size(), 20u);
}

TEST_F(Gpu, TakesACopyOfAnArgumentThatItsCallerThenWrites) {
  auto sum = function([](const at::Tensor& x) { return x.sum(); });
  at::Tensor x = torch::empty({1 << 20});
  for (int i = 0; i < 20; ++i) {
    const at::Tensor result = sum(x.fill_(i));
    x.fill_(-1);
    EXPECT_EQ(result.item<float>(), static_cast<float>(i) * (1 << 20));
  }
}

TEST_F(Gpu, BringsWhatWasComputedToTheHost) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back((torch::ones({1000, 1000}, torch::kCUDA) * i).t());
    tensors.emplace_back();
    tensors.push_back(torch::full({3}, i));
  }
  bring_to_host(tensors);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(torch::equal(tensors[3 * i], torch::full({1000, 1000}, static_cast<float>(i))));
    EXPECT_FALSE(tensors[3 * i + 1].defined());
    EXPECT_TRUE(torch::equal(tensors[3 * i + 2], torch::full({3}, i)));
  }
}

}  // namespace
}  // namespace muster
