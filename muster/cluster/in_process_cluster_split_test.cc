// Functions over several tasks give what they give in eager mode, or are refused in plain words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr const char* kPsTask = "/job:ps/task:0";
constexpr const char* kOtherWorker = "/job:worker/task:1";

// By a parameter server, which would have asked a worker if that were not positive.
at::Tensor twice_over_tasks(const at::Tensor& x) {
  DeviceScope on(kPsTask);
  return cond(
      x.sum() > 0, [&] { return x * 2; },
      [&] {
        DeviceScope there(kOtherWorker);
        return x * 3;
      });
}

class SeveralTasks : public testing::Test {
 protected:
  using Work = std::function<Tensors(at::Tensor)>;

  static void expect_eager(const Work& work, const at::Tensor& x) {
    const Tensors expected = work(x.clone());
    InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
    auto session = cluster.session({"worker", 0}, {.isolated = true});
    auto traced = function([&](at::Tensor given) { return work(given); });

    const Tensors got = session->run(traced, x.clone());

    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], expected[i])) << i << ": " << got[i] << " instead of " << expected[i];
    }
  }
};

TEST_F(SeveralTasks, CopyWhatControlFlowOverThemReturns) {
  auto work = [](at::Tensor x) -> Tensors {
    const at::Tensor twice = twice_over_tasks(x);
    DeviceScope on(kOtherWorker);
    return {repeat(2, [&](at::Tensor, at::Tensor sum) { return sum + twice; }, x), twice + 0};
  };

  expect_eager(work, torch::ones({2}));
}

TEST_F(SeveralTasks, WriteToWhatControlFlowOverThemReturns) {
  auto work = [](at::Tensor x) -> Tensors {
    const at::Tensor twice = twice_over_tasks(x);
    DeviceScope on(kPsTask);
    const at::Tensor part = twice.narrow(0, 1, 1);
    part.add_(5);
    repeat(2, [&] { part.mul_(3); });
    return {twice + 0, part + x};
  };

  expect_eager(work, torch::ones({2}));
}

TEST_F(SeveralTasks, WriteToArgumentsWhereverThatIsAskedFor) {
  auto work = [](at::Tensor x) -> Tensors {
    {
      DeviceScope on(kPsTask);
      x.add_(1);
      x.narrow(0, 0, 1).mul_(2);
    }
    const at::Tensor between = x * 1;
    repeat(2, [&] {
      DeviceScope on(kOtherWorker);
      x.mul_(3);
    });
    return {between, x + 0};
  };

  expect_eager(work, torch::ones({2}));
}

TEST_F(SeveralTasks, ReadAVariableBeforeAndAfterControlFlowHasWrittenIt) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
  auto session = cluster.session({"worker", 0}, {.isolated = true});
  Variable v(torch::ones({2}), {.name = "v", .device = kPsTask});
  auto step = function([&](at::Tensor x) -> Tensors {
    const at::Tensor before = v.value() + 0;
    auto add = [&] {
      {
        DeviceScope on(kPsTask);
        v.assign_add(x);
      }
      DeviceScope on(kOtherWorker);
      return x * 2;
    };
    const at::Tensor twice = cond(x.sum() > 0, add, [&] { return x * 3; });
    return {before, twice, v.value() + before};
  });
  session->run(initializer({v}));

  for (float value = 1; value < 5; ++value) {
    const Tensors got = session->run(step, torch::ones({2}));

    EXPECT_TRUE(torch::equal(got[0], torch::full({2}, value)));
    EXPECT_TRUE(torch::equal(got[1], torch::full({2}, 2.0F)));
    EXPECT_TRUE(torch::equal(got[2], torch::full({2}, 2 * value + 1)));
  }
}

TEST_F(SeveralTasks, RefuseToReturnMemoryOfAnotherTaskThatIsWrittenTo) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
  auto session = cluster.session({"worker", 0}, {.isolated = true});
  auto lost = function([](at::Tensor x) {
    at::Tensor there;
    {
      DeviceScope on(kPsTask);
      there = x * 2;
    }
    at::Tensor same = cond(x.sum() > 0, [&] { return there; }, [&] { return there; });
    same.add_(1);
    return there + 0;
  });

  try {
    EXPECT_TRUE(torch::equal(session->run(lost, torch::ones({2})), torch::full({2}, 3.0F)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("let it return a clone()"));
  }
}

}  // namespace
}  // namespace muster
