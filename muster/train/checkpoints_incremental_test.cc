// Checkpoints that store of large tables only the rows that have changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cerrno>
#include <filesystem>

#include "muster/base/test_errors.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/disk.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"
#include "muster/train/optimizers.h"

namespace muster::checkpoints_incremental_test {
namespace {

using testing_support::caught;

constexpr int64_t kRows = 60;
constexpr IncrementalOptions kOfAllTables{.most_differences = 3, .least_bytes = 0};

at::Tensor ids(const std::vector<int64_t>& list) { return torch::tensor(list, torch::kLong); }

// A table that is trained by rows, with the sums that Adagrad keeps for it, under whatever strategy.
struct Trained {
  Trained(const Strategy& given, const InitialValue& initial)
      : strategy(given),
        table(strategy.make<Variable>(initial, VariableOptions{.name = "table"})),
        adagrad({table}, {.learning_rate = 0.5}) {}
  explicit Trained(const Strategy& given) : Trained(given, torch::arange(2.0 * kRows).reshape({kRows, 2})) {}

  void train(const std::vector<int64_t>& rows) {
    auto step = function([this](at::Tensor at) { adagrad.minimize(lookup(table, at).sum()); });
    strategy.run(step, ids(rows));
  }
  // All rows, by rows.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const Variable& variable : {table, adagrad.slots()[0]}) {
      auto read = function([&](at::Tensor at) { return lookup(variable, at); });
      values.push_back(strategy.run(read, torch::arange(kRows)).values[0].clone());
    }
    return values;
  }

  Strategy strategy;
  Variable table;
  Adagrad adagrad;
};

class Incremental : public testing::Test {
 protected:
  ~Incremental() override { std::filesystem::remove_all(directory_); }

  ParameterServerStrategy with_parts(int parts) const {
    return ParameterServerStrategy(cluster_.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = parts}});
  }
  CheckpointsOptions options(int keep = 3) const {
    return {.directory = directory_, .keep = keep, .incremental = kOfAllTables};
  }
  std::vector<std::string> names_in_step(int64_t step) const {
    return CheckpointReader(directory_ + "/ckpt-" + std::to_string(step)).names();
  }
  // How many differences a part of the table has there.
  int differences(int64_t step, int64_t first_row = 0) const {
    int count = 0;
    for (const std::string& name : names_in_step(step)) {
      count += name.starts_with("table#ids@" + std::to_string(first_row) + "+");
    }
    return count;
  }
  void expect_restored(const Strategy& strategy, const std::vector<at::Tensor>& expected, int64_t step) const {
    Trained other(strategy);
    EXPECT_EQ(Checkpoints(strategy, {.directory = directory_}).restore(), step);
    const std::vector<at::Tensor> restored = other.values();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(restored[i].cpu(), expected[i].cpu())) << i;
  }

  const std::string directory_ = testing::TempDir() + "incremental-" + std::to_string(random_id());
  InProcessCluster cluster_{{.workers = 1, .ps = 2, .worker = {.storage = {testing::TempDir()}}}};
};

TEST_F(Incremental, BringBackAllRowsInAnyPartsUnderAnyStrategyThoughTheBaseWasRemoved) {
  std::vector<at::Tensor> expected;
  {
    Trained job(with_parts(2));
    Checkpoints checkpoints(job.strategy, options(/*keep=*/1));
    for (int64_t step = 1; step <= 4; ++step) {
      job.train({step, step + 1, 55 - step});
      checkpoints.save(step);
    }
    expected = job.values();
    EXPECT_EQ(differences(4), 3);
    EXPECT_EQ(differences(4, kRows / 2), 3);
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ckpt-3"));

  expect_restored(with_parts(2), expected, 4);
  expect_restored(with_parts(3), expected, 4);
  expect_restored(Strategy(), expected, 4);
  expect_restored(MirroredStrategy({"/device:CPU:0", "/device:CPU:1"}), expected, 4);
}

TEST_F(Incremental, OfTablesWhoseRowsAreMadeOnDemandKeepTheRule) {
  std::vector<at::Tensor> expected;
  const InitialValue on_demand = InitialValue::normal({kRows, 2}, 0, 1, 5).on_demand();
  {
    Trained job(with_parts(2), on_demand);
    Checkpoints checkpoints(job.strategy, options());
    job.train({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40});
    checkpoints.save(1);
    job.train({1, 20});
    checkpoints.save(2);
    job.train({20, 21});
    checkpoints.save(3);
    expected = job.values();
    EXPECT_EQ(differences(3), 2);
  }
  Trained other(with_parts(3), InitialValue::normal({kRows, 2}, 0, 1, 99).on_demand());

  EXPECT_EQ(Checkpoints(other.strategy, options()).restore(), 3);

  const std::vector<at::Tensor> restored = other.values();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(restored[i].cpu(), expected[i].cpu())) << i;
}

TEST_F(Incremental, AreWholeAgainAfterSoManyDifferencesAndWhenTheyAreHalfOfTheTable) {
  Trained job(with_parts(1));
  Checkpoints checkpoints(job.strategy, options(/*keep=*/100));
  std::vector<int64_t> most(kRows * 2 / 3);
  for (size_t i = 0; i < most.size(); ++i) most[i] = static_cast<int64_t>(i);
  std::vector<int> found;

  for (int64_t step = 1; step <= 8; ++step) {
    job.train(step == 7 ? most : std::vector<int64_t>{step});
    checkpoints.save(step);
    found.push_back(differences(step));
  }

  EXPECT_THAT(found, testing::ElementsAre(0, 1, 2, 3, 0, 1, 0, 1));
  expect_restored(with_parts(2), job.values(), 8);
}

TEST_F(Incremental, HaveWhatChangedSinceTheLastOneThatWasMadeWhateverFailedInBetween) {
  Trained job(with_parts(2));
  Checkpoints checkpoints(job.strategy, options());
  checkpoints.save(1);
  job.train({3, 50});
  {
    disk::ScopedFaults full([](std::string_view call, const std::string& path) {
      return call == "write" && path.ends_with("task-1.safetensors") ? ENOSPC : 0;
    });
    EXPECT_EQ(caught([&] { checkpoints.save(2); }).code(), StatusCode::kResourceExhausted);
  }
  job.train({4, 51});

  checkpoints.save_async(3);
  checkpoints.wait();

  EXPECT_EQ(differences(3), 1);
  expect_restored(with_parts(2), job.values(), 3);
}

TEST_F(Incremental, AreWholeWhereTheTableWasWrittenAsAWholeOrTheFileSystemHasNoLinks) {
  Trained job(with_parts(2));
  Checkpoints checkpoints(job.strategy, options());
  checkpoints.save(1);
  job.table.assign(torch::ones({kRows, 2}));
  checkpoints.save(2);
  EXPECT_EQ(differences(2), 0);
  job.train({1});
  {
    disk::ScopedFaults no_links([](std::string_view call, const std::string&) { return call == "link" ? EPERM : 0; });
    checkpoints.save(3);
  }
  EXPECT_EQ(differences(3), 0);
  job.train({2});
  checkpoints.save(4);
  EXPECT_EQ(differences(4), 1);

  expect_restored(with_parts(2), job.values(), 4);
}

TEST_F(Incremental, AreWholeAfterARestoreAndAfterAServerWasLost) {
  Trained job(with_parts(2));
  Checkpoints checkpoints(job.strategy, options());
  checkpoints.save(1);
  job.train({1, 40});
  checkpoints.save(2);
  EXPECT_EQ(checkpoints.restore(), 2);
  job.train({2, 41});
  checkpoints.save(3);
  EXPECT_EQ(differences(3), 0);
  cluster_.stop({"ps", 1});
  cluster_.start({"ps", 1});
  EXPECT_EQ(checkpoints.restore(), 3);
  job.train({3, 42});

  checkpoints.save(4);

  EXPECT_EQ(differences(4), 0);
  expect_restored(with_parts(2), job.values(), 4);
}

TEST_F(Incremental, ServeSeveralWhoSaveTheSameVariables) {
  Trained job(with_parts(2));
  Checkpoints often(job.strategy, options()),
      seldom(job.strategy, {.directory = directory_ + "/seldom", .incremental = kOfAllTables});
  often.save(1);
  seldom.save(1);
  for (int64_t step = 2; step <= 4; ++step) {
    job.train({step, 40});
    often.save(step);
  }

  seldom.save(4);

  EXPECT_EQ(differences(4), 3);
  Trained other(with_parts(1));
  EXPECT_EQ(Checkpoints(other.strategy, {.directory = directory_ + "/seldom"}).restore(), 4);
  EXPECT_TRUE(torch::equal(other.values()[0], job.values()[0]));
}

TEST_F(Incremental, WorkWithoutParameterServers) {
  for (const Strategy& strategy : {Strategy(), Strategy(MirroredStrategy({"/device:CPU:0", "/device:CPU:1"}))}) {
    std::filesystem::remove_all(directory_);
    std::vector<at::Tensor> expected;
    {
      Trained job(strategy);
      Checkpoints checkpoints(strategy, options());
      checkpoints.save(1);
      job.train({1, 2, 40});
      checkpoints.save(2);
      expected = job.values();
      EXPECT_EQ(differences(2), 1);
    }
    expect_restored(with_parts(2), expected, 2);
  }
}

TEST_F(Incremental, AreOffUnlessAskedFor) {
  Trained job(with_parts(2));
  Checkpoints checkpoints(job.strategy, {.directory = directory_});
  checkpoints.save(1);
  job.train({1});

  checkpoints.save(2);

  EXPECT_EQ(differences(2), 0);
  EXPECT_EQ(caught([&] {
              Checkpoints(job.strategy, {.directory = directory_, .incremental = {{.most_differences = 0}}});
            }).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::checkpoints_incremental_test
