#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>

#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/distribute/coordinator/test_coordinator.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<int64_t> numbers_in(const at::Tensor& tensor) {
  at::Tensor flat = tensor.to(torch::kLong).flatten().contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// What every worker has of its own, over both transports.
class PerWorkerData : public ::testing::TestWithParam<Transport> {
 protected:
  size_t open_sequences() {
    size_t count = 0;
    for (int i = 0; i < 2; ++i) count += cluster_.worker({"worker", i}).status().sources;
    return count;
  }

  InProcessCluster cluster_{{.workers = 2, .ps = 1, .transport = GetParam()}};
  ParameterServerStrategy strategy_ = strategy_of(cluster_, GetParam());
  Variable v_ = strategy_.make<Variable>(torch::zeros({}, torch::kLong));
  ClusterCoordinator coordinator_{strategy_};
  std::function<at::Tensor(Iterator&)> take_ = [](Iterator& it) { return it.next<1>()[0]; };
};

INSTANTIATE_TEST_SUITE_P(Transports, PerWorkerData, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

// ---- Datasets
TEST(PerWorkerDatasets, InWhichNothingIsFoundKeepNoWorkerForEver) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  {
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy);
    auto first_only = coordinator.create_per_worker_dataset(
        [] { return Dataset::range(int64_t{1} << 40).filter([](at::Tensor x) { return x < 1; }); });
    auto take = function([](Iterator& it) { return it.next<1>()[0]; });
    EXPECT_EQ(coordinator.schedule(take, first_only).fetch().item<int64_t>(), 0);

    coordinator.schedule(take, first_only);
    EXPECT_FALSE(coordinator.join(std::chrono::milliseconds(50)));
  }

  EXPECT_TRUE(eventually([&] { return cluster.worker({"worker", 0}).status().sources == 0; }));
}

TEST_P(PerWorkerData, IsOpenedBeforeAClosureNeedsItIfSomebodyAsks) {
  auto take = function(take_);
  ASSERT_TRUE(eventually([&] { return coordinator_.workers_up() == 2; }));
  {
    auto twos = coordinator_.create_per_worker_dataset(Dataset::from_tensors({torch::tensor(2)}).repeat());
    EXPECT_EQ(open_sequences(), 0u);
    coordinator_.open(twos);
    EXPECT_TRUE(eventually([&] { return open_sequences() == 2; }));
    coordinator_.open(twos);
    EXPECT_EQ(coordinator_.schedule(take, twos).fetch().item<int64_t>(), 2);
    EXPECT_EQ(open_sequences(), 2u) << "the same ones";
  }
  EXPECT_TRUE(eventually([&] { return open_sequences() == 0; }));
}

TEST_P(PerWorkerData, ThatGoesWhileItIsOpenedLeavesNothing) {
  const Dataset twos = Dataset::from_tensors({torch::tensor(2)}).repeat();
  ASSERT_TRUE(eventually([&] { return coordinator_.workers_up() == 2; }));
  for (int i = 0; i < 50; ++i) coordinator_.open(coordinator_.create_per_worker_dataset(twos));
  EXPECT_TRUE(eventually([&] { return open_sequences() == 0; }));

  auto last = coordinator_.create_per_worker_dataset(twos);
  coordinator_.open(last);
  EXPECT_TRUE(eventually([&] { return open_sequences() == 2; })) << "nothing that was to be opened is left behind it";
}

TEST_P(PerWorkerData, IsReadFromWhereverTheFunctionRuns) {
  auto twos = coordinator_.create_per_worker_dataset([] { return Dataset::from_tensors({torch::tensor(2)}).repeat(); });
  auto add = function([&](Iterator& it) { v_.assign_add(it.next<1>()[0]); });

  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < 5; ++i) coordinator_.schedule(add, twos);
    coordinator_.join();
    EXPECT_EQ(v_.value().item<int64_t>(), 10 * round);
  }
}

TEST_P(PerWorkerData, MayBeMadeByCppThatTheWorkersKnowByName) {
  static const bool once = [] {
    register_dataset_source("coordinator test counts", [](const RegisteredOptions& options) -> ColumnGenerator {
      return [next = std::stoll(options.at("begin"))]() mutable -> std::optional<Columns> {
        return Columns{torch::tensor(int64_t{next++})};
      };
    });
    register_dataset_map("coordinator test doubles", [](const RegisteredOptions&) -> ColumnFunction {
      return [](const Columns& element) { return Columns{element[0].tensor() * 2}; };
    });
    return true;
  }();
  (void)once;
  auto numbers = coordinator_.create_per_worker_dataset([] {
    return Dataset::registered("coordinator test counts", {{"begin", "5"}})
        .map_registered("coordinator test doubles", {}, {.threads = 2})
        .batch(2);
  });
  auto step = function(take_);

  EXPECT_THAT(numbers_in(coordinator_.schedule_on(0, step, numbers).fetch()), ElementsAre(10, 12));
  EXPECT_THAT(numbers_in(coordinator_.schedule_on(0, step, numbers).fetch()), ElementsAre(14, 16));
  EXPECT_THAT(numbers_in(coordinator_.schedule_on(1, step, numbers).fetch()), ElementsAre(10, 12));
}

TEST_P(PerWorkerData, MayEndWithASmallerBatchBehindAFunction) {
  auto numbers = coordinator_.create_per_worker_dataset(
      [] { return Dataset::range(101).batch(2).map([](at::Tensor x) { return x + 1; }).skip(49); });
  auto step = function([](Iterator& it) { return it.next<1>()[0].sum(); });

  EXPECT_EQ(coordinator_.schedule_on(0, step, numbers).fetch().item<int64_t>(), 99 + 100);
  EXPECT_EQ(coordinator_.schedule_on(0, step, numbers).fetch().item<int64_t>(), 101);
}

TEST_P(PerWorkerData, ComesInOrderAtOneWorker) {
  auto numbers = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 6); });
  auto step = function(take_);

  for (int64_t i = 1; i <= 5; ++i) EXPECT_EQ(coordinator_.schedule_on(0, step, numbers).fetch().item<int64_t>(), i);

  EXPECT_EQ(coordinator_.schedule_on(1, step, numbers).fetch().item<int64_t>(), 1) << "the other one has its own";
  const Status end = caught([&] { coordinator_.schedule_on(0, step, numbers).fetch(); });
  EXPECT_EQ(end.code(), StatusCode::kOutOfRange) << end;
  EXPECT_EQ(caught([&] { coordinator_.join(); }).code(), StatusCode::kOutOfRange);
}

TEST_P(PerWorkerData, BeginsAnewWithEachIterator) {
  auto one = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 2); });
  auto step = function([&](Iterator& it) {
    auto [x] = it.next<1>();
    v_.assign_add(x);
    return x;
  });

  for (int i = 0; i < 2; ++i) EXPECT_EQ(coordinator_.schedule(step, one.iterator()).fetch().item<int64_t>(), 1);

  EXPECT_EQ(v_.value().item<int64_t>(), 2);
  EXPECT_EQ(step.stats().misses, 1) << "whatever the sequence, it is one function";
}

TEST_P(PerWorkerData, HasItsFunctionTracedOnce) {
  int traced = 0;
  auto numbers = coordinator_.create_per_worker_dataset([&] {
    return Dataset::range(10).map([&](at::Tensor x) {
      ++traced;
      return x + 10;
    });
  });
  auto step = function(take_);

  for (int worker : {0, 1}) {
    EXPECT_EQ(coordinator_.schedule_on(worker, step, numbers).fetch().item<int64_t>(), 10);
  }

  EXPECT_EQ(traced, 1);
}

TEST_P(PerWorkerData, MayBeADatasetThatIsThereAlready) {
  auto batches = coordinator_.create_per_worker_dataset(Dataset::range(1, 11).batch(4, true));

  EXPECT_THAT(numbers_in(coordinator_.schedule(function(take_), batches).fetch()), ElementsAre(1, 2, 3, 4));
}

TEST_P(PerWorkerData, MayBeAnotherOneForEachWorker) {
  auto shards = coordinator_.create_per_worker_dataset(
      [](const InputContext& context) { return Dataset::range(10).shard(context).batch(5); });
  auto step = function(take_);

  std::vector<std::vector<int64_t>> seen;
  for (int worker : {0, 1}) seen.push_back(numbers_in(coordinator_.schedule_on(worker, step, shards).fetch()));

  EXPECT_THAT(seen, ElementsAre(ElementsAre(0, 2, 4, 6, 8), ElementsAre(1, 3, 5, 7, 9)));
}

// ---- Elements of several shapes
TEST_P(PerWorkerData, HasItsFunctionTracedOnceMoreForTheLastSmallerBatch) {
  auto batches = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 11).batch(4).repeat(2); });
  auto step = function([](Iterator& it) {
    auto [x] = it.next<1>();
    return std::make_tuple(x.size(0), x.sum());
  });

  for (int worker : {0, 1}) {
    std::vector<RemoteValue<std::tuple<int64_t, at::Tensor>>> values;
    for (int i = 0; i < 6; ++i) values.push_back(coordinator_.schedule_on(worker, step, batches));
    std::vector<int64_t> rows, sums;
    for (const auto& value : values) {
      rows.push_back(std::get<0>(value.fetch()));
      sums.push_back(std::get<1>(value.fetch()).item<int64_t>());
    }
    EXPECT_THAT(rows, UnorderedElementsAre(4, 4, 2, 4, 4, 2));
    EXPECT_THAT(sums, UnorderedElementsAre(10, 26, 19, 10, 26, 19));
  }
  EXPECT_EQ(step.stats().misses, 2);
  EXPECT_EQ(step.stats().retraces, 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cluster_.worker({"worker", i}).status().programs, 2u) << "registered once";
}

TEST_P(PerWorkerData, IsAppliedOnceWhateverTheShapesOfItsElements) {
  auto batches = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 11).batch(4).repeat(); });
  auto taken = coordinator_.create_per_worker_variable(torch::zeros({}, torch::kLong));
  auto step = function([&](Iterator& it) {
    v_.assign_add(torch::ones({}, torch::kLong));
    Variable(taken).assign_add(it.next<1>()[0].sum());
    return Variable(taken).value() + 0;
  });
  constexpr int kSteps = 300;

  for (int i = 0; i < kSteps; ++i) coordinator_.schedule(step, batches);
  coordinator_.join();

  EXPECT_EQ(v_.value().item<int64_t>(), kSteps);
  // Each worker has read its sequence from the beginning, without a gap.
  int64_t steps = 0;
  for (const at::Tensor& value : coordinator_.values(taken)) {
    const int64_t rest = value.item<int64_t>() % 55;
    EXPECT_THAT(rest, AnyOf(0, 10, 36));
    steps += value.item<int64_t>() / 55 * 3 + (rest == 0 ? 0 : rest == 10 ? 1 : 2);
  }
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(step.stats().misses, 2);
}

TEST_P(PerWorkerData, HasItsFunctionTracedOnceMoreInTheScopeInWhichItWasScheduled) {
  auto batches = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 7).batch(4); });
  std::vector<std::string> scopes;
  auto step = function([&](Iterator& it) {
    scopes.push_back(DeviceScope::current());
    return it.next<1>()[0].sum();
  });

  {
    DeviceScope cpu("/device:CPU:0");
    for (int64_t sum : {10, 11}) EXPECT_EQ(coordinator_.schedule_on(0, step, batches).fetch().item<int64_t>(), sum);
  }

  EXPECT_THAT(scopes, ElementsAre("/device:CPU:0", "/device:CPU:0"));
}

TEST_P(PerWorkerData, FailsTheFunctionThatCannotBeTracedForItsElement) {
  auto batches = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 7).batch(4); });
  auto step = function([](Iterator& it) { return it.next<1>()[0] + torch::ones({4}, torch::kLong); });
  coordinator_.schedule_on(0, step, batches).fetch();

  auto value = coordinator_.schedule_on(0, step, batches);

  EXPECT_THAT(caught([&] { value.fetch(); }).message(), HasSubstr("size"));
  EXPECT_FALSE(caught([&] { coordinator_.join(); }).ok());
}

TEST_P(PerWorkerData, IsShuffledDifferentlyAtEachWorker) {
  auto shuffled = coordinator_.create_per_worker_dataset([] { return Dataset::range(100).shuffle(100).batch(100); });
  auto step = function(take_);

  auto first = numbers_in(coordinator_.schedule_on(0, step, shuffled).fetch());
  auto second = numbers_in(coordinator_.schedule_on(1, step, shuffled).fetch());

  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST_P(PerWorkerData, IsNotMadeByAFunctionThatMakesAVariable) {
  auto with_variable = [] {
    Variable mine(torch::ones({}));
    return Dataset::range(3);
  };
  auto with_context = [&](const InputContext&) { return with_variable(); };

  const Status status = caught([&] { coordinator_.create_per_worker_dataset(with_variable); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr("variable"));
  EXPECT_EQ(caught([&] { coordinator_.create_per_worker_dataset(with_context); }).code(), StatusCode::kInvalidArgument);
  EXPECT_NO_THROW(Variable(torch::ones({}))) << "the refusal ends with the function";
}

TEST_P(PerWorkerData, IsNotMadeOfWhatOnlyThisProcessCanMake) {
  auto mine = Dataset::generator([] { return [] { return std::optional<Element>({torch::ones({})}); }; });

  EXPECT_EQ(caught([&] { coordinator_.create_per_worker_dataset(mine); }).code(), StatusCode::kInvalidArgument);
}

TEST_P(PerWorkerData, LivesUntilItsFunctionsHaveRunAndNoLonger) {
  auto numbers = coordinator_.create_per_worker_dataset([] { return Dataset::range(2, 100); });
  auto step = function(take_);

  std::vector<RemoteValue<at::Tensor>> values;
  for (int round = 0; round < 10; ++round) {
    PerWorkerDataset iterator = numbers.iterator();
    for (int i = 0; i < 11; ++i) values.push_back(coordinator_.schedule(step, iterator));
  }
  coordinator_.join();

  for (const auto& value : values) EXPECT_THAT(value.fetch().item<int64_t>(), Ge(2));
  EXPECT_TRUE(eventually([&] { return open_sequences() == 0; })) << open_sequences();
}

TEST_P(PerWorkerData, MayOutliveTheCoordinator) {
  std::optional<ClusterCoordinator> mine;
  ParameterServerStrategy strategy = strategy_of(cluster_, GetParam());
  mine.emplace(strategy);
  auto numbers = mine->create_per_worker_dataset(Dataset::range(5));
  mine->schedule(function(take_), numbers).fetch();

  mine.reset();

  EXPECT_EQ(open_sequences(), 0u);
}

TEST_P(PerWorkerData, IsStillThereAfterAnotherFunctionHasFailed) {
  auto numbers = coordinator_.create_per_worker_dataset([] { return Dataset::range(1, 100); });
  auto step = function(take_);
  auto pick = picky();
  coordinator_.schedule_on(0, step, numbers).fetch();

  coordinator_.schedule(pick, bad_index());
  EXPECT_EQ(caught([&] { coordinator_.join(); }).code(), StatusCode::kInvalidArgument);

  EXPECT_EQ(coordinator_.schedule_on(0, step, numbers).fetch().item<int64_t>(), 2);
  coordinator_.join();
}

// ---- Variables
TEST_P(PerWorkerData, MayBeAVariableThatNoOtherWorkerSees) {
  auto each = coordinator_.create_per_worker_variable(torch::zeros({}));
  auto add = function([&] { Variable(each).assign_add(torch::ones({})); });
  auto sum = [&] {
    float total = 0;
    for (const at::Tensor& value : coordinator_.values(each)) total += value.item<float>();
    return total;
  };

  EXPECT_EQ(sum(), 0);
  for (int i = 0; i < 10; ++i) {
    coordinator_.schedule(add);
    coordinator_.join();
    EXPECT_EQ(sum(), i + 1);
  }
  for (int i = 0; i < 10; ++i) coordinator_.schedule(add);
  coordinator_.join();

  EXPECT_EQ(sum(), 20);
  for (int i = 0; i < 2; ++i) {
    Worker& worker = cluster_.worker({"worker", i});
    EXPECT_EQ(worker.status().variables, 1u) << i;
    for (const VariableInfo& variable : worker.variables()) {
      EXPECT_EQ(variable.device, worker.status().default_device) << i;
    }
  }
  EXPECT_EQ(cluster_.worker({"ps", 0}).status().variables, 1u) << "v_ alone";
}

TEST_P(PerWorkerData, MayBeAVariableOnlyInFunctionsThatAreScheduled) {
  auto each = coordinator_.create_per_worker_variable(torch::zeros({}), "mine");

  for (const Status& status :
       {caught([&] { Variable(each).value(); }), caught([&] { Variable(each).assign(torch::ones({})); })}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("mine"));
  }
}

TEST_P(PerWorkerData, EndsWithTheStrategy) {
  std::optional<ParameterServerStrategy> strategy = strategy_of(cluster_, GetParam());
  {
    ClusterCoordinator mine(*strategy);
    auto each = mine.create_per_worker_variable(torch::zeros({}));
    auto add = function([&] { return Variable(each).assign_add(torch::ones({})).value() + 0; });
    for (int worker : {0, 1}) mine.schedule_on(worker, add).fetch();
    EXPECT_EQ(cluster_.worker({"worker", 0}).status().variables, 1u);
  }

  strategy.reset();

  for (int i = 0; i < 2; ++i) EXPECT_EQ(cluster_.worker({"worker", i}).status().variables, 0u) << i;
}

// ---- Files
class PerWorkerFiles : public ::testing::Test {
 protected:
  PerWorkerFiles() {
    for (int file = 0; file < 4; ++file) {
      std::string text = "user,sold\n";
      for (int row = 0; row < 5; ++row) str_append(text, row % 2 == 0 ? "ann," : "bob,", 10 * file + row, "\n");
      directory_.write(str_cat("part-", file, ".csv"), text);
    }
  }
  Dataset rows() const {
    return Dataset::csv({directory_.path() + "/part-*.csv"})
        .preprocess("user", string_lookup({.vocabulary = {"ann", "bob"}}))
        .label("sold");
  }
  InProcessCluster cluster_with(std::vector<std::string> data) const {
    LocalWorkerOptions worker;
    worker.data = std::move(data);
    return InProcessCluster({.workers = 2, .ps = 1, .worker = worker});
  }

  const ScopedDirectory directory_;
};

TEST_F(PerWorkerFiles, AreReadByTheWorkersAndTheirColumnsHaveNames) {
  const InProcessCluster cluster = cluster_with({directory_.path()});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto parts = coordinator.create_per_worker_dataset(
      [&](const InputContext& context) { return rows().shard(context, ShardPolicy::kFile); });
  auto take = function([](Iterator& it) {
    auto [features, label] = it.next_labelled();
    return torch::stack({features["user"], label});
  });

  std::vector<int64_t> labels;
  for (int worker = 0; worker < 2; ++worker) {
    for (int row = 0; row < 10; ++row) {
      const std::vector<int64_t> got = numbers_in(coordinator.schedule_on(worker, take, parts).fetch());
      EXPECT_EQ(got[0], 1 + got[1] % 10 % 2);
      labels.push_back(got[1]);
    }
  }
  EXPECT_EQ(labels.front(), 0);
  EXPECT_EQ(labels[10], 10) << "the second worker begins with the second file";
  std::sort(labels.begin(), labels.end());
  EXPECT_EQ(std::unique(labels.begin(), labels.end()), labels.end()) << "no row is read twice";
}

TEST_F(PerWorkerFiles, AreReadBelowTheDirectoriesThatATaskAllowsAlone) {
  const ScopedDirectory elsewhere;
  std::filesystem::create_symlink(directory_.path(), elsewhere.path() + "/link");
  const std::string through_link = elsewhere.path() + "/link/part-0.csv";
  auto take = function([](Iterator& it) { return it.next_features()["sold"]; });
  for (const auto& [allowed, files] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, directory_.path() + "/part-*.csv"},
           {{elsewhere.path()}, directory_.path() + "/part-0.csv"},
           {{elsewhere.path()}, through_link}}) {
    const InProcessCluster cluster = cluster_with(allowed);
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy);
    auto parts = coordinator.create_per_worker_dataset(Dataset::csv({files}).select({"sold"}));

    auto value = coordinator.schedule(take, parts);
    const Status refused = caught([&] { value.fetch(); });

    EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("--data"));
    EXPECT_THROW(coordinator.join(), Error);
  }
}

// ---- What cannot be made
TEST(PerWorkerInputs, ThatCannotBeMadeFailTheFunctionsThatUseThemAndNoOthers) {
  LocalWorkerOptions worker;
  worker.open_source = [](const std::string&, Worker&) -> std::unique_ptr<ElementSource> {
    throw not_found("no such file");
  };
  InProcessCluster cluster({.workers = 1, .ps = 1, .worker = worker});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto broken = coordinator.create_per_worker_dataset(Dataset::range(5));
  auto unused = coordinator.create_per_worker_dataset(Dataset::range(5));
  auto twice = function([](at::Tensor x) { return x * 2; });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  EXPECT_EQ(coordinator.schedule(twice, torch::ones({})).fetch().item<float>(), 2);
  EXPECT_NO_THROW(coordinator.join());

  auto value = coordinator.schedule(take, broken);

  for (const Status& status : {caught([&] { coordinator.join(); }), caught([&] { value.fetch(); })}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), HasSubstr("a per-worker dataset cannot be made at a worker: no such file"));
  }
  EXPECT_EQ(coordinator.schedule(twice, torch::ones({})).fetch().item<float>(), 2);
}

TEST(PerWorkerInputs, ThatFailWithAnAbortOfTheirOwnAreNotTakenForARestart) {
  class Failing : public ElementSource {
    std::optional<Element> next() override { throw aborted("the reader has given up"); }
  };
  LocalWorkerOptions worker;
  worker.open_source = [](const std::string&, Worker&) { return std::make_unique<Failing>(); };
  InProcessCluster cluster({.workers = 1, .ps = 1, .worker = worker});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto failing = coordinator.create_per_worker_dataset(Dataset::range(5));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });

  coordinator.schedule(take, failing);

  const Status status = caught([&] { coordinator.join(); });
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
  EXPECT_THAT(status.message(), HasSubstr("the reader has given up"));
}

TEST(PerWorkerInputs, ThatNeedSomethingOfThisProcessNameIt) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  Variable here(torch::full({}, 10.0F), {.name = "only_here"});
  auto halfway = coordinator.create_per_worker_dataset(
      [&] { return Dataset::range(5).map([&](at::Tensor x) { return x + here.value(); }); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });

  auto value = coordinator.schedule(take, halfway);

  for (const Status& status : {caught([&] { coordinator.join(); }), caught([&] { value.fetch(); })}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("only_here"));
  }
}

}  // namespace
}  // namespace muster
