#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <barrier>
#include <numeric>
#include <thread>

#include "muster/data/auto_shard.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/strategy.h"
#include "muster/distribute/worker_share.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::strategy_data_test {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Batch = std::vector<int64_t>;
using Batches = std::vector<Batch>;  // by step

// Workers that are threads of this process do here what they would do together.
class OneOfThreads : public Collectives {
 public:
  struct Meeting {
    explicit Meeting(int size) : brought(static_cast<size_t>(size)), all_here(size) {}
    std::vector<std::vector<at::Tensor>> brought;
    std::barrier<> all_here;
    std::atomic<int> calls{0};
  };

  OneOfThreads(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->brought.size()); }
  std::string described(int rank) const override { return str_cat("rank ", rank); }
  std::vector<at::Tensor> run(const CollectiveCall& call, std::vector<at::Tensor> values,
                              const Cancellation*) override {
    meeting_->brought[static_cast<size_t>(rank_)] = std::move(values);
    if (rank_ == 0) ++meeting_->calls;
    meeting_->all_here.arrive_and_wait();
    std::vector<at::Tensor> all;
    for (const auto& of_one : meeting_->brought) all.push_back(of_one.at(0));
    at::Tensor result = all[0].clone();
    if (call.kind == CollectiveKind::kAllReduce) {
      EXPECT_NE(call.reduction, Reduction::kSum);
      result = call.reduction == Reduction::kMax ? at::stack(all).amax(0) : at::stack(all).amin(0);
    }
    meeting_->all_here.arrive_and_wait();
    return {result};
  }
  void start(const CollectiveCall&, std::vector<at::Tensor>, const Cancellation*, CollectiveDone done) override {
    done(Status(StatusCode::kUnimplemented, "no program of these tests adds anything up"), {});
  }
  void fail(const Status& why) override { ADD_FAILURE() << why.message(); }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

class OneWorker : public Strategy {
 public:
  OneWorker(const AcrossWorkers& across, int replicas)
      : Strategy({.replica_devices = std::vector<std::string>(static_cast<size_t>(replicas)), .across = across}) {}
};

struct Workers {
  int count = 1, replicas = 1;  // of each
  int meetings = 0;             // that they needed
};

// What each replica of each worker takes, step by step, until the sequence has ended for all: by worker, then by
// replica.
std::vector<std::vector<Batches>> taken(Workers& workers, const std::function<Iterator(const Strategy&)>& distribute) {
  static std::atomic<uint64_t> groups{1'000'000};
  std::vector<std::vector<Batches>> all(static_cast<size_t>(workers.count));
  const auto meeting = std::make_shared<OneOfThreads::Meeting>(workers.count);
  auto work = [&](int rank) {
    const uint64_t group = ++groups;
    if (workers.count > 1) local_worker().add_group(group, std::make_shared<OneOfThreads>(meeting, rank));
    const OneWorker strategy({.group = group, .rank = rank, .size = workers.count}, workers.replicas);
    auto rows = function([](Iterator& it) { return it.next<1>()[0] * 1; });
    Iterator batches = distribute(strategy);
    auto& mine = all[static_cast<size_t>(rank)];
    mine.resize(static_cast<size_t>(workers.replicas));
    while (true) {
      PerReplica<at::Tensor> step;
      try {
        step = strategy.run(rows, batches);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), StatusCode::kOutOfRange) << error.what();
        break;
      }
      for (size_t i = 0; i < mine.size(); ++i) {
        const at::Tensor numbers = step.values[i].to(torch::kLong).contiguous();
        mine[i].emplace_back(numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel());
      }
    }
    if (workers.count > 1) local_worker().remove_group(group);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < workers.count; ++rank) threads.emplace_back(work, rank);
  }
  workers.meetings = meeting->calls;
  return all;
}

std::vector<std::vector<Batches>> taken(Workers workers, const Dataset& dataset,
                                        ShardPolicy policy = ShardPolicy::kAuto) {
  return taken(workers, [&](const Strategy& strategy) { return strategy.distribute(dataset, policy); });
}

Batch sorted_rows(const std::vector<std::vector<Batches>>& all) {
  Batch rows;
  for (const auto& worker : all) {
    for (const Batches& replica : worker) {
      for (const Batch& batch : replica) rows.insert(rows.end(), batch.begin(), batch.end());
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// ---- By elements
TEST(DistributedData, DividesEachBatchOverTheWorkers) {
  const auto three = taken({.count = 3}, Dataset::range(8).batch(4), ShardPolicy::kData);

  EXPECT_THAT(three[0], ElementsAre(Batches{{0, 1}, {4, 5}}));
  EXPECT_THAT(three[1], ElementsAre(Batches{{2, 3}, {6, 7}}));
  EXPECT_THAT(three[2], ElementsAre(Batches{{}, {}}));
}

TEST(DistributedData, GivesAnEmptyBatchToWhomTheLastOneDoesNotReach) {
  const auto two = taken({.count = 2}, Dataset::range(9).batch(2));
  const auto without_rest = taken({.count = 2}, Dataset::range(9).batch(2, /*drop_remainder=*/true));

  EXPECT_THAT(two[0], ElementsAre(Batches{{0}, {2}, {4}, {6}, {8}}));
  EXPECT_THAT(two[1], ElementsAre(Batches{{1}, {3}, {5}, {7}, {}}));
  EXPECT_THAT(without_rest[0], ElementsAre(Batches{{0}, {2}, {4}, {6}}));
  EXPECT_THAT(without_rest[1], ElementsAre(Batches{{1}, {3}, {5}, {7}}));
}

TEST(DistributedData, GivesEachReplicaItsShareOfABatch) {
  const auto halves = taken({.replicas = 2}, Dataset::range(100).batch(10));

  for (const Batches& replica : halves[0]) {
    EXPECT_EQ(replica.size(), 10u);
    EXPECT_THAT(replica, ::testing::Each(::testing::SizeIs(5)));
  }
  EXPECT_EQ(sorted_rows(halves).size(), 100u);
}

TEST(DistributedData, GivesTheFirstReplicasOneRowMoreIfABatchDoesNotDivide) {
  const auto four = taken({.replicas = 4}, Dataset::range(16).batch(9));

  EXPECT_THAT(four[0], ElementsAre(Batches{{0, 1, 2}, {9, 10}}, Batches{{3, 4}, {11, 12}}, Batches{{5, 6}, {13, 14}},
                                   Batches{{7, 8}, {15}}));
}

TEST(DistributedData, LeavesOnlyAReplicaWithoutRowsForWhichThereAreNone) {
  const auto three = taken({.replicas = 3}, Dataset::range(6).batch(4));

  EXPECT_THAT(three[0], ElementsAre(Batches{{0, 1}, {4}}, Batches{{2}, {5}}, Batches{{3}, {}}));
}

TEST(DistributedData, DealsOutTheRowsOfWorkersEvenlyToTheirReplicas) {
  const auto two = taken({.count = 2, .replicas = 2}, Dataset::range(14).batch(7), ShardPolicy::kOff);

  std::vector<size_t> rows;  // of the first two steps
  for (size_t step = 0; step < 2; ++step) {
    for (const auto& worker : two) {
      for (const Batches& replica : worker) rows.push_back(replica.at(step).size());
    }
  }
  EXPECT_THAT(rows, ElementsAre(2, 2, 2, 1, 2, 1, 2, 2)) << "as batch_sizes_for_worker has it";
}

// ---- By any strategy that takes its steps here
std::vector<Strategy> strategies_of_this_process() {
  const std::vector<std::string> devices{"/device:CPU:1", "/device:CPU:2"};
  return {Strategy(), OneDeviceStrategy(devices[0]), MirroredStrategy(devices),
          CentralStorageStrategy(devices, "/device:CPU:0")};
}

TEST(DistributedData, IsBegunAgainByWhatTheStrategyMadeOfADataset) {
  for (const Strategy& strategy : strategies_of_this_process()) {
    const int64_t replicas = strategy.num_replicas_in_sync();
    const DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(8).batch(4));
    auto rows = function([](Iterator& it) { return it.next<1>()[0] + 0; });
    for (int time = 0; time < 2; ++time) {
      Iterator it = dataset.iterator();
      for (int64_t first = 0; first < 8; first += 4) {
        const PerReplica<at::Tensor> batch = strategy.run(rows, it);

        EXPECT_EQ(batch.values[0].size(0), 4 / replicas);
        EXPECT_TRUE(strategy.gather(batch).equal(torch::arange(first, first + 4)));
      }
    }
  }
}

TEST(DistributedData, IsBegunAgainByWhatTheStrategyMadeOfAFunction) {
  for (const Strategy& strategy : strategies_of_this_process()) {
    const int64_t replicas = strategy.num_replicas_in_sync();
    const DistributedDataset dataset = strategy.distribute_datasets_from_function([&](const InputContext& context) {
      EXPECT_EQ(context.num_replicas_in_sync, replicas);
      return Dataset::range(8).batch(context.per_replica_batch_size(4));
    });
    auto rows = function([](Iterator& it) { return it.next<1>()[0] + 0; });
    for (int time = 0; time < 2; ++time) {
      Iterator it = dataset.iterator();

      EXPECT_TRUE(strategy.gather(strategy.run(rows, it)).equal(torch::arange(4)));
    }
  }
}

// ---- From a function
TEST(DistributedData, FromAFunctionEndsWithTheLastStepThatAnyReplicaHas) {
  Workers two_devices{.replicas = 2};
  const auto both = taken(two_devices, [](const Strategy& strategy) {
    return strategy.distribute([](const InputContext&) { return Dataset::range(9).batch(2); });
  });

  EXPECT_THAT(both[0], ElementsAre(Batches{{0, 1}, {4, 5}, {8}}, Batches{{2, 3}, {6, 7}, {}}));
}

TEST(DistributedData, FromAFunctionGivesEmptyBatchesToAWorkerThatHasLess) {
  Workers two{.count = 2};
  const auto both = taken(two, [](const Strategy& strategy) {
    return strategy.distribute(
        [](const InputContext& context) { return Dataset::range(8 + context.input_pipeline_id).batch(2); });
  });

  EXPECT_THAT(both[0], ElementsAre(Batches{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {}}));
  EXPECT_THAT(both[1], ElementsAre(Batches{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}}));
}

TEST(DistributedData, FromAFunctionNeedsNoWordBeforeEachStepIfItIsEndless) {
  auto meetings = [](const Dataset& dataset) {
    Workers two{.count = 2};
    taken(two, [&](const Strategy& strategy) {
      Iterator it = strategy.distribute([&](const InputContext&) { return dataset; });
      for (int i = 0; i < 10; ++i) (void)it.next<1>();
      return strategy.distribute([&](const InputContext&) { return Dataset::range(1).batch(1); });
    });
    return two.meetings;
  };

  const int endless = meetings(Dataset::range(8).batch(2).repeat());

  EXPECT_EQ(meetings(Dataset::range(40).batch(2)), endless + 10);
}

TEST(DistributedData, WithoutRowsCannotEndBeforeOthers) {
  const MirroredStrategy strategy({"/device:CPU:1", "/device:CPU:2"});
  auto numbers = function([](Iterator& it) { return it.next<1>()[0] * 1; });
  Iterator it = strategy.distribute([](const InputContext&) { return Dataset::range(3); });

  strategy.run(numbers, it);

  EXPECT_THAT(caught([&] { strategy.run(numbers, it); }).message(), HasSubstr("add batch(n)"));
}

// ---- By files
class DistributedFiles : public testing::Test {
 protected:
  // Ten files; in file i the i + 1 numbers after those of the one before.
  DistributedFiles() {
    int number = 0;
    for (int file = 0; file < 10; ++file) {
      std::string text;
      for (int line = 0; line <= file; ++line) str_append(text, number++, "\n");
      directory_.write(str_cat("f", file), text);
    }
    all_.resize(static_cast<size_t>(number));
    std::iota(all_.begin(), all_.end(), 0);
  }
  Dataset lines(const std::string& files = "f*") const {
    return Dataset::text_lines({str_cat(directory_.path(), "/", files)})
        .parse_csv({.columns = {{.name = "x", .type = CsvColumn::Type::kInt64}}});
  }

  const ScopedDirectory directory_;
  Batch all_;
};

TEST_F(DistributedFiles, AreReadOnceByWhateverNumberOfWorkers) {
  for (int workers = 1; workers <= 7; ++workers) {
    for (const ShardPolicy policy : {ShardPolicy::kAuto, ShardPolicy::kFile, ShardPolicy::kData}) {
      for (const int replicas : {1, 2}) {
        SCOPED_TRACE(str_cat(workers, " workers with ", replicas, " replicas, policy ", static_cast<int>(policy)));
        const auto all = taken({.count = workers, .replicas = replicas}, lines().shuffle(20).batch(6), policy);

        EXPECT_EQ(sorted_rows(all), all_);
        for (const auto& worker : all) EXPECT_EQ(worker[0].size(), all[0][0].size()) << "they take the same steps";
      }
    }
  }
}

TEST_F(DistributedFiles, AreDividedInBatchesOfTheSameRowsForAll) {
  // Of 55 numbers in batches of 4 for 2 workers: files 0, 2, 4, 6, 8 (25 numbers) and 1, 3, 5, 7, 9 (30 numbers).
  const auto both = taken({.count = 2}, lines().batch(4));

  ASSERT_EQ(both[0][0].size(), 15u);
  ASSERT_EQ(both[1][0].size(), 15u);
  EXPECT_EQ(both[0][0][0], (Batch{0, 3}));
  EXPECT_EQ(both[1][0][0], (Batch{1, 2}));
  EXPECT_EQ(both[0][0][12], (Batch{44}));
  EXPECT_EQ(both[0][0][13], Batch()) << "the other one has more";
  EXPECT_EQ(both[1][0][14], (Batch{53, 54}));
}

TEST_F(DistributedFiles, AreDividedByElementsIfThereAreTooFew) {
  const auto three = taken({.count = 3}, lines("f[89]").batch(6));

  EXPECT_EQ(three[0][0][0], (Batch{36, 37}));
  EXPECT_EQ(three[1][0][0], (Batch{38, 39}));
}

TEST_F(DistributedFiles, LeaveAWorkerWithoutAFileBatchesWithoutRows) {
  const auto three = taken({.count = 3}, lines("f[01]").batch(3), ShardPolicy::kFile);
  EXPECT_THAT(three[2], ElementsAre(Batches{{}, {}}));
  EXPECT_THAT(three[1], ElementsAre(Batches{{1}, {2}}));

  Workers again{.count = 3};
  taken(again, [&](const Strategy& strategy) {
    Iterator it = strategy.distribute(lines("f[01]").batch(3).repeat(), ShardPolicy::kFile);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(it.next<1>()[0].size(0), strategy.across().rank == 2 ? 0 : 1);
    return strategy.distribute(Dataset::range(1).batch(1));
  });
}

TEST_F(DistributedFiles, AreReadWholeByAllIfNobodyDivides) {
  const auto both = taken({.count = 2}, lines().batch(10), ShardPolicy::kOff);
  EXPECT_EQ(sorted_rows({both[0]}), all_);
  EXPECT_EQ(both[0], both[1]);
  EXPECT_EQ(both[0][0][0].size(), 5u) << "half of the batch that all replicas take together";

  const auto hinted = taken({.count = 2}, Dataset::range(8).shard_hint().batch(4), ShardPolicy::kHint);
  EXPECT_THAT(hinted[1], ElementsAre(Batches{{1, 3}, {5, 7}}));
}

TEST_F(DistributedFiles, RefuseWhatCannotBeDivided) {
  const MirroredStrategy alone({"/device:CPU:1"});

  EXPECT_EQ(caught([&] { (void)alone.distribute(Dataset::range(4).batch(2), ShardPolicy::kDynamic); }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { (void)alone.distribute(Dataset::range(4).batch(2), ShardPolicy::kFile); }).code(),
            StatusCode::kNotFound);
}

TEST_F(DistributedFiles, AreNamedInTheLog) {
  auto words = [&](const Dataset& dataset, int workers, int worker, ShardPolicy policy) {
    return described_part(dataset, {.num_input_pipelines = workers, .input_pipeline_id = worker}, policy);
  };

  EXPECT_EQ(words(lines(), 3, 0, ShardPolicy::kFile), "worker 0 of 3 reads 4 of 10 files (every 3rd)");
  EXPECT_EQ(words(lines(), 3, 1, ShardPolicy::kFile), "worker 1 of 3 reads 3 of 10 files (every 3rd)");
  EXPECT_EQ(words(Dataset::concatenate({lines(), lines()}), 2, 1, ShardPolicy::kFile),
            "worker 1 of 2 reads 10 of 20 files (every 2nd)");
  EXPECT_EQ(words(lines(), 2, 1, ShardPolicy::kData), "worker 1 of 2 reads all, and takes its rows of each batch");
  EXPECT_EQ(words(lines(), 2, 1, ShardPolicy::kOff), "worker 1 of 2 reads all: nothing divides it");
  EXPECT_EQ(words(lines(), 11, 1, ShardPolicy::kHint), "worker 1 of 11 reads every 11th element of each shard_hint()");
}

// ---- The rows of a step
TEST(RowsOfSteps, AreThoseOfTensorFlow) {
  // batch_sizes_for_worker(…) of TensorFlow 2.21, the sizes of the replicas of a step added up.
  EXPECT_THAT(rows_of_steps(64, 3, 2, 0), ElementsAre(22, 22, 20));
  EXPECT_THAT(rows_of_steps(64, 3, 2, 1), ElementsAre(22, 20, 22));
  EXPECT_THAT(rows_of_steps(64, 3, 2, 2), ElementsAre(20, 22, 22));
  EXPECT_THAT(rows_of_steps(4, 3, 1, 1), ElementsAre(1, 1, 2));
  EXPECT_THAT(rows_of_steps(2, 3, 1, 2), ElementsAre(0, 1, 1));
  EXPECT_THAT(rows_of_steps(7, 2, 2, 0), ElementsAre(4, 3));
}

TEST(Endless, IsWhatBeginsAgainForEver) {
  const Dataset ends = Dataset::range(3), never = ends.repeat();

  EXPECT_TRUE(is_endless(never.shuffle(2).batch(2).prefetch(1)));
  EXPECT_TRUE(is_endless(Dataset::concatenate({ends, never})));
  EXPECT_TRUE(is_endless(Dataset::zip({never, never})));
  EXPECT_FALSE(is_endless(Dataset::zip({never, ends})));
  EXPECT_FALSE(is_endless(never.take(5)));
  EXPECT_FALSE(is_endless(ends.repeat(2)));
  EXPECT_FALSE(is_endless(never.repeat(0)));
}

}  // namespace muster::strategy_data_test
