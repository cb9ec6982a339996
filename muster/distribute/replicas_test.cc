#include "muster/distribute/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/trace/read_cache.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;

const std::vector<std::string> kTwo{"/device:CPU:0", "/device:CPU:1"};

std::vector<int64_t> numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kLong).flatten().contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// A worker with two devices, and as many replicas as the parameter says.
class Replicas : public ::testing::TestWithParam<int> {
 protected:
  Variable make(double value, Aggregation aggregation = Aggregation::kNone) {
    return strategy_.make<Variable>(torch::full({}, value), VariableOptions{.name = "v", .aggregation = aggregation});
  }

  InProcessCluster cluster_{{.workers = 1, .ps = 2, .devices_per_task = 2}};
  const int replicas_ = GetParam();
  ParameterServerStrategy strategy_{cluster_.resolver(),
                                    {.replica_devices = replicas_ == 1 ? std::vector<std::string>{} : kTwo}};
  ClusterCoordinator coordinator_{strategy_};
};

class TwoReplicas : public Replicas {};

INSTANTIATE_TEST_SUITE_P(Count, Replicas, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Count, TwoReplicas, ::testing::Values(2));

// ---- run and reduce
TEST_P(Replicas, TakeAStepTogether) {
  Variable v = make(1);
  auto replica = function([&](at::Tensor x) { return std::make_tuple(x + v.value(), x - v.value()); });
  auto step = function([&](at::Tensor x) { return strategy_.run(replica, x); });

  const auto each = coordinator_.schedule(step, torch::full({}, 3.0F)).fetch();

  ASSERT_EQ(each.values.size(), static_cast<size_t>(replicas_));
  for (const auto& [sum, difference] : each.values) {
    EXPECT_EQ(sum.item<float>(), 4);
    EXPECT_EQ(difference.item<float>(), 2);
  }
  EXPECT_EQ(strategy_.num_replicas_in_sync(), replicas_);
}

TEST_P(Replicas, AreReducedToOneValue) {
  Variable v = make(1), first = make(0, Aggregation::kOnlyFirstReplica);
  auto replica = function([&](at::Tensor x) {
    first.assign_add(x);
    return std::make_tuple(x + v.value(), x - v.value());
  });
  auto step = function([&](at::Tensor x) { return strategy_.reduce(ReduceOp::kSum, strategy_.run(replica, x)); });

  for (int i = 0; i < 2; ++i) {
    auto [sum, difference] = coordinator_.schedule(step, torch::full({}, 3.0F)).fetch();
    EXPECT_EQ(sum.item<float>(), 4.0F * static_cast<float>(replicas_));
    EXPECT_EQ(difference.item<float>(), 2.0F * static_cast<float>(replicas_));
  }
  coordinator_.join();

  EXPECT_EQ(first.value().item<float>(), 6);
}

TEST_P(Replicas, AreReducedOverAnAxisToo) {
  auto replica = function([](at::Tensor x) { return x * (replica_id() + 1); });
  auto step = function([&](at::Tensor x) {
    const auto each = strategy_.run(replica, x);
    return std::make_tuple(strategy_.reduce(ReduceOp::kMean, each), strategy_.reduce(ReduceOp::kSum, each, 0),
                           strategy_.reduce(ReduceOp::kMean, each, 0));
  });

  auto [mean, sum, mean_over_axis] = coordinator_.schedule(step, torch::tensor({1.0F, 2.0F})).fetch();

  const float factor = replicas_ == 1 ? 1 : 1.5F;
  EXPECT_TRUE(torch::allclose(mean, torch::tensor({1.0F, 2.0F}) * factor));
  EXPECT_FLOAT_EQ(sum.item<float>(), 3 * factor * static_cast<float>(replicas_));
  EXPECT_FLOAT_EQ(mean_over_axis.item<float>(), 1.5F * factor);
}

TEST_P(TwoReplicas, RunOnDevicesOfTheirOwnAndDrawOtherNumbers) {
  auto replica = function([](at::Tensor x) { return x + torch::rand({8}); });
  auto step = function([&](at::Tensor x) { return strategy_.run(replica, x); });

  const auto each = coordinator_.schedule(step, torch::zeros({8})).fetch();

  for (const std::string& device : kTwo) EXPECT_THAT(step.program(torch::zeros({8})).devices, Contains(device));
  EXPECT_FALSE(torch::equal(each.values[0], each.values[1]));
}

TEST_P(TwoReplicas, GetTheirSharesOfAnArgument) {
  auto replica = function([](at::Tensor x, at::Tensor all) { return x.sum() + all; });
  auto step = function([&](at::Tensor x) {
    const PerReplica<at::Tensor> halves{{x.narrow(0, 0, 1), x.narrow(0, 1, 2)}};
    return strategy_.run(replica, halves, torch::full({}, 10.0F));
  });

  const auto each = coordinator_.schedule(step, torch::tensor({1.0F, 2.0F, 3.0F})).fetch();

  EXPECT_EQ(each.values[0].item<float>(), 11);
  EXPECT_EQ(each.values[1].item<float>(), 15);
  auto wrong = function([&](at::Tensor x) { return strategy_.run(replica, PerReplica<at::Tensor>{{x}}, x); });
  EXPECT_THAT(caught([&] { coordinator_.schedule(wrong, torch::ones({})); }).message(), HasSubstr("1 replicas"));
}

TEST_P(Replicas, RunFromThisProcessWithAWarning) {
  Variable v = make(1, Aggregation::kSum);
  auto replica = function([&](at::Tensor x) {
    v.assign_add(x);
    return x * 2;
  });
  LogCapture log;

  const auto each = strategy_.run(replica, torch::ones({}));
  const at::Tensor sum = strategy_.reduce(ReduceOp::kSum, each);

  EXPECT_TRUE(log.contains("ParameterServerStrategy::run is invoked without ClusterCoordinator::schedule"));
  EXPECT_EQ(sum.item<float>(), 2.0F * static_cast<float>(replicas_));
  EXPECT_EQ(v.value().item<float>(), 1.0F + static_cast<float>(replicas_));
}

TEST_P(Replicas, AreReducedByThisProcessWithAWarningAndByWorkersWithoutOne) {
  auto replica = function([](at::Tensor x) { return x * 2; });
  auto step = function([&](at::Tensor x) { return strategy_.reduce(ReduceOp::kSum, strategy_.run(replica, x)); });
  PerReplica<at::Tensor> each;
  for (int i = 0; i < replicas_; ++i) each.values.push_back(torch::full({}, 1.5F));
  LogCapture log;

  const at::Tensor by_worker = coordinator_.schedule(step, torch::ones({})).fetch();
  const bool warned = log.contains("is invoked without ClusterCoordinator::schedule");
  const at::Tensor sum = strategy_.reduce(ReduceOp::kSum, each);

  EXPECT_EQ(by_worker.item<float>(), 2.0F * static_cast<float>(replicas_));
  EXPECT_FALSE(warned);
  EXPECT_EQ(sum.item<float>(), 1.5F * static_cast<float>(replicas_));
  EXPECT_TRUE(log.contains("ParameterServerStrategy::reduce is invoked without ClusterCoordinator::schedule"));
}

// ---- Writes
TEST_P(Replicas, WriteTheSumOfWhatTheyWrite) {
  Variable v = make(1, Aggregation::kSum);
  auto replica = function([&] { v.assign(torch::full({}, replica_id() + 1.0F)); });
  auto step = function([&] { strategy_.run(replica); });

  coordinator_.schedule(step);
  coordinator_.join();

  EXPECT_EQ(v.value().item<float>(), replicas_ == 1 ? 1 : 3);
}

TEST_P(TwoReplicas, WriteTheirMeanIfAsked) {
  Variable v = make(1, Aggregation::kMean);
  Variable whole = strategy_.make<Variable>(torch::zeros({2}, torch::kLong),
                                            VariableOptions{.name = "whole", .aggregation = Aggregation::kMean});
  auto replica = function([&] {
    v.assign_sub(torch::full({}, replica_id() + 1.0F));
    whole.assign_add(torch::full({2}, 2 * replica_id() + 1, torch::kLong));
  });
  auto step = function([&] { strategy_.run(replica); });

  coordinator_.schedule(step);
  coordinator_.join();

  EXPECT_FLOAT_EQ(v.value().item<float>(), -0.5F);
  EXPECT_TRUE(torch::equal(whole.value(), torch::full({2}, 2, torch::kLong)));
}

TEST_P(TwoReplicas, WriteVariablesOfSeveralPartsAsOne) {
  ParameterServerStrategy strategy(cluster_.resolver(),
                                   {.partitioner = FixedShardsPartitioner{2}, .replica_devices = kTwo});
  Variable v = strategy.make<Variable>(torch::zeros({4}), VariableOptions{.aggregation = Aggregation::kSum});
  auto replica = function([&](at::Tensor x) { v.assign_add(x * (replica_id() + 1)); });
  auto step = function([&](at::Tensor x) { strategy.run(replica, x); });
  ClusterCoordinator coordinator(strategy);

  coordinator.schedule(step, torch::arange(4, torch::kFloat));
  coordinator.join();

  EXPECT_TRUE(torch::equal(v.value(), torch::arange(4, torch::kFloat) * 3));
}

TEST_P(TwoReplicas, DoNotWriteWithoutAnAggregation) {
  Variable v = make(1);
  auto replica = function([&] { v.assign_add(torch::ones({})); });
  auto step = function([&] { strategy_.run(replica); });

  const Status status = caught([&] { coordinator_.schedule(step); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr("variable \"v\" is written by each of 2 replicas"));
  EXPECT_THAT(status.message(), HasSubstr("aggregation"));
}

TEST_P(TwoReplicas, SayWhatTheyCannotDo) {
  Variable v = make(1, Aggregation::kSum);
  auto reads_back = function([&] { return v.assign_add(torch::ones({})).value() + 0; });
  auto one_writes = function([&] {
    if (replica_id() == 1) v.assign_add(torch::ones({}));
  });
  auto other_writes = function([&] {
    if (replica_id() == 0) v.assign_add(torch::ones({}));
  });
  auto nested = function([&] { strategy_.run(one_writes); });
  auto refusal = [&](const auto& replica) {
    auto step = function([&] { strategy_.run(replica); });
    const Status status = caught([&] { coordinator_.schedule(step); });
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    return status.message();
  };

  EXPECT_THAT(refusal(reads_back), HasSubstr("variable \"v\" is read by replica 0 after it has written to it"));
  EXPECT_THAT(refusal(one_writes), HasSubstr("replica 1 comes to a write to variable \"v\", replica 0 to its end"));
  EXPECT_THAT(refusal(other_writes), HasSubstr("replica 1 ends, but replica 0 came to a write to variable \"v\""));
  EXPECT_THAT(refusal(nested), HasSubstr("strategy.run() inside of replica 0"));
}

TEST_P(TwoReplicas, AreRefusedOnDevicesThatAreNoneOfAWorker) {
  for (const std::string device : {"/job:worker/task:0/device:CPU:0", "/task:1", ""}) {
    const Status status = caught([&] { ParameterServerStrategy(cluster_.resolver(), {.replica_devices = {device}}); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("replica device"));
  }
}

TEST_P(TwoReplicas, AreTheGpusThatTheResolverKnowsOf) {
  auto with_gpus = [&](int of_second) {
    DeviceLister lister = [=](const std::string&) {
      std::vector<std::string> devices{"/job:worker/replica:0/task:0/device:GPU:0",
                                       "/job:worker/replica:0/task:0/device:GPU:1"};
      for (int i = 0; i < of_second; ++i) devices.push_back(str_cat("/job:worker/replica:0/task:1/device:GPU:", i));
      return devices;
    };
    InProcessCluster two({.workers = 2, .ps = 1});
    SimpleClusterResolver resolver(two.spec(), {.rpc_layer = "grpc", .devices = lister});
    return ParameterServerStrategy(resolver).num_replicas_in_sync();
  };

  EXPECT_EQ(with_gpus(2), 2);
  const Status status = caught([&] { with_gpus(1); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("Mismatched number of GPUs per worker"));
}

// ---- Datasets
TEST_P(Replicas, ShareTheBatchesOfADataset) {
  auto batches = coordinator_.create_per_worker_dataset(
      [&] { return strategy_.distribute_dataset(Dataset::range(1, 11).batch(4, true)); });
  auto replica = function([](Iterator& it) { return it.next<1>()[0] + 0; });
  auto step = function([&](Iterator& it) { return strategy_.run(replica, it); });

  const auto each = coordinator_.schedule(step, batches).fetch();

  std::vector<int64_t> seen;
  for (const at::Tensor& part : each.values) {
    EXPECT_EQ(part.numel(), 4 / replicas_);
    for (int64_t number : numbers_of(part)) seen.push_back(number);
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_P(Replicas, HaveBatchesOfTheirOwnIfTheyAreMadeForThem) {
  auto batches = coordinator_.create_per_worker_dataset([&](const InputContext& context) {
    EXPECT_EQ(context.num_replicas_in_sync, replicas_);
    return strategy_.distribute_datasets_from_function(
        [&](const InputContext& inner) { return Dataset::range(1, 11).batch(inner.per_replica_batch_size(4), true); });
  });
  auto replica = function([](Iterator& it) { return it.next<1>()[0] + 0; });
  auto step = function([&](Iterator& it) { return strategy_.run(replica, it); });

  const auto each = coordinator_.schedule(step, batches).fetch();

  std::vector<int64_t> seen;
  for (const at::Tensor& part : each.values) {
    for (int64_t number : numbers_of(part)) seen.push_back(number);
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_P(Replicas, TakeAnElementEachFromAPlainIterator) {
  Variable v = make(1);
  auto numbers = coordinator_.create_per_worker_dataset(Dataset::range(1, 3));
  auto replica = function([&](Iterator& it) {
    auto [x] = it.next<1>();
    return std::make_tuple(x + v.value(), x - v.value());
  });
  auto step = function([&](Iterator& it) { return strategy_.run(replica, it); });

  const auto each = coordinator_.schedule(step, numbers).fetch();

  EXPECT_EQ(std::get<0>(each.values[0]).item<float>(), 2);
  EXPECT_EQ(std::get<1>(each.values[0]).item<float>(), 0);
  EXPECT_EQ(std::get<0>(each.values.back()).item<float>(), 1.0F + static_cast<float>(replicas_));
}

TEST_P(Replicas, ShareALastSmallerBatch) {
  auto batches = coordinator_.create_per_worker_dataset(
      [&] { return strategy_.distribute_dataset(Dataset::range(1, 11).batch(4)); });
  auto replica = function([](Iterator& it) { return it.next<1>()[0] + 0; });
  auto step = function([&](Iterator& it) { return strategy_.run(replica, it); });

  std::vector<int64_t> seen;
  for (int i = 0; i < 3; ++i) {
    for (const at::Tensor& part : coordinator_.schedule_on(0, step, batches).fetch().values) {
      for (int64_t number : numbers_of(part)) seen.push_back(number);
    }
  }

  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST_P(TwoReplicas, HaveDatasetsThatOnlyWorkersIterate) {
  const DistributedDataset dataset = strategy_.distribute_dataset(Dataset::range(4));

  const Status status = caught([&] { (void)dataset.iterator(); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("create_per_worker_dataset"));
}

// ---- Reads that are kept
TEST_P(Replicas, ReadTheSameValueWithinAReadCacheScope) {
  Variable v = make(1, Aggregation::kSum);
  {
    ReadCacheScope cache;
    EXPECT_EQ(v.value().item<float>(), 1);
    v.assign(torch::full({}, 5.0F));
    EXPECT_EQ(v.value().item<float>(), 1);
  }
  EXPECT_EQ(v.value().item<float>(), 5);
  auto step = function([&] {
    ReadCacheScope cache;
    at::Tensor before = v.value();
    v.assign_add(torch::ones({}));
    return v.value() + before;
  });

  EXPECT_EQ(coordinator_.schedule(step).fetch().item<float>(), 10);
  EXPECT_EQ(v.value().item<float>(), 6);
}

}  // namespace
}  // namespace muster
