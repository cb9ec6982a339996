// Datasets whose parts the coordinator hands out to whoever has read what it had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "muster/distribute/coordinator/part_dealer.h"
#include "muster/distribute/coordinator/test_coordinator.h"

namespace muster::part_dealer_test {
namespace {

using namespace ::muster::testing_support;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;

constexpr int64_t kNumbers = 600;

Dataset dynamic(const Dataset& dataset) { return dataset.shard(InputContext(), ShardPolicy::kDynamic); }

// How often each number was used, as a parameter server counts it.
class HandedOutData : public ::testing::TestWithParam<Transport> {
 protected:
  void make(int workers, std::vector<std::string> data = {}) {
    LocalWorkerOptions worker;
    worker.data = std::move(data);
    cluster_.emplace(
        InProcessClusterOptions{.workers = workers, .ps = 1, .transport = GetParam(), .worker = std::move(worker)});
    strategy_.emplace(strategy_of(*cluster_, GetParam()));
    counts_.emplace(strategy_->make<Variable>(torch::zeros({kNumbers}, torch::kLong)));
    coordinator_.emplace(*strategy_);
  }
  auto counting() {
    return function([this](Iterator& it) {
      const at::Tensor numbers = it.next<1>()[0];
      counts_->assign_add(torch::zeros({kNumbers}, torch::kLong).index_add(0, numbers, torch::ones_like(numbers)));
    });
  }
  // False once the sequence has ended.
  template <class Step, class Data>
  bool use(Step& step, const Data& data, int closures) {
    for (int i = 0; i < closures; ++i) {
      try {
        coordinator_->schedule(step, data);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), StatusCode::kOutOfRange) << error.status();
        return false;
      }
    }
    const Status ended = caught([&] { coordinator_->join(); });
    EXPECT_TRUE(ended.ok() || ended.code() == StatusCode::kOutOfRange) << ended;
    return ended.ok();
  }
  std::vector<int64_t> counts() const {
    const at::Tensor value = counts_->value();
    return {value.data_ptr<int64_t>(), value.data_ptr<int64_t>() + value.numel()};
  }

  std::optional<InProcessCluster> cluster_;
  std::optional<ParameterServerStrategy> strategy_;
  std::optional<Variable> counts_;
  std::optional<ClusterCoordinator> coordinator_;
};

INSTANTIATE_TEST_SUITE_P(Transports, HandedOutData, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

TEST_P(HandedOutData, IsUsedOnceHoweverManyWorkersThereAre) {
  for (const int workers : {1, 3, 7}) {
    make(workers);
    auto data =
        coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).shuffle(40).batch(7).prefetch(2)));
    auto step = counting();
    while (use(step, data, 25)) {
    }
    EXPECT_THAT(counts(), Each(1)) << workers;
  }
}

TEST_P(HandedOutData, GoesRoundAsOftenAsItIsRepeated) {
  make(3);
  auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).repeat(3).batch(10)));
  auto step = counting();
  while (use(step, data, 30)) {
  }
  EXPECT_THAT(counts(), Each(3));
}

TEST_P(HandedOutData, IsHandedOutInWholeBatches) {
  make(2);
  Variable steps = strategy_->make<Variable>(torch::zeros({}, torch::kLong));
  auto data =
      coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).shuffle(40).batch(50).prefetch(2)));
  auto step = function([&](Iterator& it) {
    const at::Tensor numbers = it.next<1>()[0];
    counts_->assign_add(torch::zeros({kNumbers}, torch::kLong).index_add(0, numbers, torch::ones_like(numbers)));
    steps.assign_add(torch::ones({}, torch::kLong));
  });

  while (use(step, data, 25)) {
  }

  EXPECT_THAT(counts(), Each(1));
  EXPECT_EQ(steps.value().item<int64_t>(), kNumbers / 50);
}

TEST_P(HandedOutData, MayHaveFewerPartsThanWorkers) {
  make(5);
  auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(2).repeat().batch(1)));
  auto step = counting();
  EXPECT_TRUE(use(step, data, 100)) << "an endless sequence ends for nobody";
  EXPECT_EQ(counts()[0] + counts()[1], 100);
}

TEST_P(HandedOutData, IsHandedOutFileByFile) {
  const ScopedDirectory directory;
  for (int64_t file = 0; file < 10; ++file) {
    std::string text = "number\n";
    for (int64_t row = 0; row < kNumbers / 10; ++row) str_append(text, file * (kNumbers / 10) + row, "\n");
    directory.write(str_cat("part-", file, ".csv"), text);
  }
  make(3, {directory.path()});
  const Dataset rows =
      Dataset::csv({directory.path() + "/part-*.csv"}, {.files = {.cycle_length = 2}}).shuffle(30).batch(8);
  auto data = coordinator_->create_per_worker_dataset(dynamic(rows));
  auto step = counting();
  while (use(step, data, 25)) {
  }
  EXPECT_THAT(counts(), Each(1));
}

TEST_P(HandedOutData, OfAWorkerThatIsLostIsUsedByOthers) {
  make(3);
  auto data =
      coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).shuffle(50).batch(4).prefetch(2)));
  auto step = counting();
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(use(step, data, 12));
    const TaskId lost("worker", round % 3);
    cluster_->stop(lost);
    ASSERT_TRUE(use(step, data, 4));
    cluster_->start(lost);
  }
  while (use(step, data, 25)) {
  }
  EXPECT_THAT(counts(), Each(Ge(1)));
}

TEST_P(HandedOutData, ComesBackToThoseWhoHaveEnded) {
  make(2);
  auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).batch(5)));
  auto step = counting();
  coordinator_->schedule_on(1, step, data).fetch();  // it has a part, of which it has used some
  cluster_->stop({"worker", 1});
  while (use(step, data, 25)) {
  }
  EXPECT_THAT(counts(), Each(Ge(1)));
}

TEST_P(HandedOutData, IsKnownToBeUsedThoughNobodyAsksForMore) {
  make(2);
  auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(6).batch(1)));
  auto step = counting();
  coordinator_->schedule_on(0, step, data).fetch();  // and never again
  for (int i = 0; i < 5; ++i) coordinator_->schedule_on(1, step, data).fetch();
  const Status ended = caught([&] { coordinator_->schedule_on(1, step, data).fetch(); });
  EXPECT_EQ(ended.code(), StatusCode::kOutOfRange) << ended;
}

TEST_P(HandedOutData, EndsWhereWhatIsLeftIsTooFewForAStep) {
  make(2);
  auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(9).batch(1)));
  auto step = function([this](Iterator& it) {
    for (int i = 0; i < 4; ++i) counts_->assign_add(torch::one_hot(it.next<1>()[0], kNumbers).sum(0));
  });
  while (use(step, data, 5)) {
  }
  const std::vector<int64_t> used = counts();
  const int64_t sum = std::accumulate(used.begin(), used.end(), int64_t{0});
  EXPECT_THAT(sum, ::testing::AnyOf(4, 8)) << "whole steps, and each worker may have too few for one more";
}

TEST_P(HandedOutData, OfWhichThereIsTooLittleForAStepIsUsedBySmallerOnes) {
  for (int trial = 0; trial < 3; ++trial) {  // who has how many of the six is a matter of chance
    make(2);
    auto step = counting();
    auto of_seven = function([this](Iterator& it) {
      at::Tensor counted = torch::zeros({kNumbers}, torch::kLong);
      for (int i = 0; i < 7; ++i) {
        const at::Tensor numbers = it.next<1>()[0];
        counted = counted.index_add(0, numbers, torch::ones_like(numbers));
      }
      counts_->assign_add(counted);
    });
    auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(6).batch(1)));
    auto first = coordinator_->schedule_on(0, of_seven, data), second = coordinator_->schedule_on(1, of_seven, data);
    for (const auto& value : {first, second}) EXPECT_EQ(caught([&] { value.fetch(); }).code(), StatusCode::kOutOfRange);
    EXPECT_EQ(caught([&] { coordinator_->join(); }).code(), StatusCode::kOutOfRange);  // which says so once more

    EXPECT_TRUE(use(step, data, 6));

    EXPECT_EQ(counts_->value().sum().item<int64_t>(), 6);
  }
}

TEST_P(HandedOutData, LeavesNothingBehind) {
  make(2);
  auto step = counting();
  {
    auto data = coordinator_->create_per_worker_dataset(dynamic(Dataset::range(kNumbers).batch(5)));
    EXPECT_TRUE(use(step, data, 10));
  }
  for (int worker = 0; worker < 2; ++worker) {
    EXPECT_TRUE(eventually([&] { return cluster_->worker({"worker", worker}).status().sources == 0; }));
  }
}

// ---- Positions
TEST_P(HandedOutData, GoesOnAfterAPosition) {
  make(3);
  std::string position;
  auto step = counting();
  const Dataset numbers = dynamic(Dataset::range(kNumbers).batch(4));
  {
    auto data = coordinator_->create_per_worker_dataset(numbers);
    ASSERT_TRUE(use(step, data, 60));
    position = coordinator_->position(data);
  }
  auto data = coordinator_->create_per_worker_dataset(numbers, position);
  while (use(step, data, 25)) {
  }
  const std::vector<int64_t> used = counts();
  EXPECT_THAT(used, Each(Ge(1)));
  // What was being read is read again, and what was used last, for nobody has told of it yet.
  EXPECT_LE(std::count_if(used.begin(), used.end(), [](int64_t count) { return count > 1; }), 3 * 8);
}

TEST_P(HandedOutData, AndDataOfEachWorkerGoOnAfterAPosition) {
  make(2);
  auto step = counting();
  auto shard = [](const InputContext& context) { return Dataset::range(kNumbers).shard(context).shuffle(50).batch(3); };
  std::string position;
  {
    auto data = coordinator_->create_per_worker_dataset(shard);
    for (int i = 0; i < 40; ++i) coordinator_->schedule_on(i % 2, step, data).fetch();
    position = coordinator_->position(data);
  }
  auto data = coordinator_->create_per_worker_dataset(shard, position);
  for (int i = 0; i < 160; ++i) coordinator_->schedule_on(i % 2, step, data).fetch();
  EXPECT_THAT(counts(), Each(1));

  if (GetParam() == Transport::kGrpc) {  // else what was stopped can still be asked
    cluster_->stop({"worker", 1});
    const std::string without_it = coordinator_->position(data);
    EXPECT_EQ(without_it.substr(without_it.find('\n')), "\n") << "whoever is lost begins anew";
    coordinator_->create_per_worker_dataset(shard, without_it);
  }

  EXPECT_THAT(caught([&] { coordinator_->create_per_worker_dataset(shard, position + "\n"); }).message(),
              HasSubstr("3 workers, but there are 2"));
}

TEST(HandedOutDatasets, ThatCannotBeAreRefusedAtOnce) {
  const Status two = caught([] { dynamic(Dataset::zip({Dataset::range(3), Dataset::range(3)})); });
  EXPECT_EQ(two.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(two.message(), HasSubstr("2 datasets"));
  const Dataset handed_out = dynamic(Dataset::range(3));
  EXPECT_THAT(caught([&] { Dataset::concatenate({handed_out, handed_out}); }).message(), HasSubstr("2 datasets"));
  EXPECT_THAT(caught([&] { Dataset::concatenate({Dataset::range(3), handed_out}); }).message(),
              HasSubstr("2 datasets"));
  EXPECT_THAT(caught([&] { handed_out.shuffle(2).cache(); }).message(), HasSubstr("kFile"));
  EXPECT_THAT(caught([&] { dynamic(Dataset::range(9).take(5)); }).message(), HasSubstr("take"));
  const Status cache = caught([] { dynamic(Dataset::range(3).cache()); });
  EXPECT_THAT(cache.message(), HasSubstr("cache"));
}

TEST(HandedOutDatasets, AreReadAsAWholeInTheProcessItself) {
  auto all = dynamic(Dataset::range(5)).open(local_worker());
  int64_t count = 0;
  while (all->next()) ++count;
  EXPECT_EQ(count, 5);
}

// ---- The dealer
PartsWanted wants(int64_t round = 0) { return {.request = 1, .parts = 4, .round = round}; }

TEST(PartDealer, GivesEachPartOnceARound) {
  PartDealer dealer;
  std::vector<int64_t> given;
  for (int i = 0; i < 4; ++i) given.push_back(dealer.answer(i % 2, wants()).part.number);
  EXPECT_THAT(given, ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(dealer.answer(0, wants()).what, PartsGiven::What::kRoundOver);
  EXPECT_EQ(dealer.answer(0, wants(1)).what, PartsGiven::What::kPart);
}

TEST(PartDealer, GivesWhatALostWorkerHadNotUsedToTheNext) {
  PartDealer dealer;
  for (int i = 0; i < 4; ++i) dealer.answer(0, wants());
  PartsWanted over = {.request = 2, .parts = 4, .late = true, .ended = true, .used = {{0, 0}, {0, 2}}};
  EXPECT_EQ(dealer.answer(0, over).what, PartsGiven::What::kElsewhere);
  dealer.lost(0);
  over.used = {};
  EXPECT_EQ(dealer.answer(1, over).what, PartsGiven::What::kAgain);
  std::set<int64_t> again;
  PartsWanted late = {.request = 3, .parts = 4, .late = true};
  for (int i = 0; i < 2; ++i) again.insert(dealer.answer(1, late).part.number);
  EXPECT_THAT(again, ::testing::ElementsAre(1, 3));
  over.used = {{0, 1}, {0, 3}};
  EXPECT_EQ(dealer.answer(1, over).what, PartsGiven::What::kEnd);
}

TEST(PartDealer, EndsWhenAllWhoHavePartsCanDoNothingWithThem) {
  PartDealer dealer;
  for (int i = 0; i < 4; ++i) dealer.answer(i % 2, wants());
  PartsWanted more = {.request = 2, .parts = 4, .late = true, .ended = true, .idle = 2, .needs = 3};

  EXPECT_EQ(dealer.answer(0, more).what, PartsGiven::What::kElsewhere) << "the other one may be lost";
  more.idle = 0;
  EXPECT_EQ(dealer.answer(1, more).what, PartsGiven::What::kElsewhere) << "it has runs that may be lost";
  more.idle = 2;
  EXPECT_EQ(dealer.answer(1, more).what, PartsGiven::What::kEnd);
  EXPECT_EQ(dealer.answer(0, more).what, PartsGiven::What::kEnd);
}

TEST(PartDealer, LetsWhoHasTooFewGoOnWithWhatALostWorkerHad) {
  PartDealer dealer;
  for (int i = 0; i < 4; ++i) dealer.answer(i % 2, wants());
  const PartsWanted more = {.request = 2, .parts = 4, .late = true, .ended = true, .idle = 2, .needs = 3};
  dealer.answer(0, more);
  dealer.lost(1);
  EXPECT_EQ(dealer.answer(0, more).what, PartsGiven::What::kAgain);
  for (int i = 0; i < 2; ++i) dealer.answer(0, {.request = 3, .parts = 4, .late = true});

  dealer.answer(1, {.request = 1, .parts = 4, .late = true});
  EXPECT_EQ(dealer.answer(1, more).what, PartsGiven::What::kElsewhere) << "what it said is over with what it was given";
  EXPECT_EQ(dealer.answer(0, more).what, PartsGiven::What::kEnd);
}

TEST(PartDealer, LeavesToAFunctionThatNeedsFewerWhatIsTooFewForAnother) {
  PartDealer dealer;
  for (int i = 0; i < 4; ++i) dealer.answer(i % 2, wants());
  const PartsWanted of_many = {.request = 2, .parts = 4, .late = true, .ended = true, .idle = 2, .needs = 3};
  for (const int worker : {0, 1}) dealer.answer(worker, of_many);

  PartsWanted of_one = {.request = 3, .parts = 4, .late = true, .ended = true, .needs = 1, .used = {{0, 0}, {0, 2}}};
  EXPECT_EQ(dealer.answer(0, of_one).what, PartsGiven::What::kElsewhere) << "the other one has two, and may use them";
  of_one.used = {{0, 1}, {0, 3}};
  EXPECT_EQ(dealer.answer(1, of_one).what, PartsGiven::What::kEnd);
}

TEST(PartDealer, DoesNotTakeForIdleWhatARunHasTakenAgain) {
  PartDealer dealer;
  for (int i = 0; i < 4; ++i) dealer.answer(i % 2, wants());
  const PartsWanted more = {.request = 2, .parts = 4, .late = true, .ended = true, .idle = 2, .needs = 3};
  dealer.answer(0, more);

  dealer.answer(0, {.request = 0, .parts = 4, .late = true, .ended = true});

  EXPECT_EQ(dealer.answer(1, more).what, PartsGiven::What::kElsewhere) << "its worker may be lost";
}

TEST(PartDealer, RefusesWorkersThatSeeOtherFiles) {
  PartDealer dealer;
  dealer.answer(0, wants());
  const PartsGiven refused = dealer.answer(1, {.request = 1, .parts = 5});
  ASSERT_EQ(refused.what, PartsGiven::What::kError);
  EXPECT_THAT(refused.error.message(), HasSubstr("the same files"));
}

TEST(PartDealer, GoesOnFromAPosition) {
  PartDealer dealer;
  for (int i = 0; i < 3; ++i) dealer.answer(0, wants());
  dealer.answer(0, {.request = 4, .parts = 4, .used = {{0, 1}}});
  PartDealer next;
  next.set_position(dealer.position());
  std::vector<int64_t> given;
  for (int i = 0; i < 3; ++i) given.push_back(next.answer(0, wants()).part.number);
  EXPECT_THAT(given, ::testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(next.answer(0, wants()).what, PartsGiven::What::kRoundOver);

  PartDealer rounds;
  rounds.set_position(R"({"rounds": 2, "parts": 4, "which": 0, "used_parts": [0, 1, 3]})");
  EXPECT_EQ(rounds.answer(0, wants(0)).what, PartsGiven::What::kRoundOver);
  EXPECT_EQ(rounds.answer(0, wants(1)).what, PartsGiven::What::kRoundOver);
  EXPECT_EQ(rounds.answer(0, wants(2)).part, SourcePart(2, 2));
  for (const char* text : {"x", "{}", R"({"rounds": "x", "parts": 4, "which": 0, "used_parts": []})",
                           R"({"rounds": -1, "parts": 4, "which": 0, "used_parts": []})",
                           R"({"rounds": 0, "parts": 4, "which": 0, "used_parts": [0.5]})"}) {
    EXPECT_EQ(caught([&] { PartDealer().set_position(text); }).code(), StatusCode::kInvalidArgument) << text;
  }

  PartDealer some;
  some.set_position(position_before_parts(dealer.position(), 1, 3));
  EXPECT_EQ(parts_in(dealer.position()), 4);
  EXPECT_EQ(parts_in(PartDealer().position()), std::nullopt);
  EXPECT_EQ(some.answer(0, wants()).part, SourcePart(0, 1));
  EXPECT_EQ(some.answer(0, wants()).part, SourcePart(0, 2));
  EXPECT_EQ(some.answer(0, wants()).what, PartsGiven::What::kRoundOver);

  PartDealer of_others;
  of_others.set_position(dealer.position());
  const PartsGiven refused = of_others.answer(0, {.request = 1, .parts = 5});
  ASSERT_EQ(refused.what, PartsGiven::What::kError);
  EXPECT_THAT(refused.error.message(), HasSubstr("position"));
}

}  // namespace
}  // namespace muster::part_dealer_test
