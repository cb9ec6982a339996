// Sequences that go on where another one was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/data/dataset.h"
#include "muster/data/sources/sources.h"
#include "muster/data/test_elements.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/runtime/worker/shared_source.h"

namespace muster::dataset_position_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::vector<int64_t>> rest_of(SharedSource& source, size_t most = 1'000) {
  std::vector<std::vector<int64_t>> rest;
  while (rest.size() < most) {
    auto element = source.next();
    if (!element) break;
    const at::Tensor flat = (*element)[0].flatten().contiguous();
    rest.emplace_back(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  }
  return rest;
}

// Takes `taken` elements, and compares what is left with what another one has that begins there.
void expect_to_go_on(const Dataset& dataset, int64_t taken, size_t most = 1'000) {
  SharedSource first(dataset.open(local_worker()));
  rest_of(first, static_cast<size_t>(taken));
  const std::string position = first.position();
  const auto rest = rest_of(first, most);

  SharedSource here(dataset.from(position).open(local_worker()));
  EXPECT_EQ(rest_of(here, most), rest) << position;
  SharedSource there(open_source(dataset.from(position).serialize(), local_worker()));
  EXPECT_EQ(rest_of(there, most), rest) << position;
}

TEST(Position, IsWhereTheNextElementIs) {
  for (const int64_t taken : {0, 1, 7, 20, 25}) {
    expect_to_go_on(Dataset::range(20), taken);
    expect_to_go_on(Dataset::range(20).batch(3), taken);
    expect_to_go_on(Dataset::range(20).shuffle(6).batch(3).prefetch(2), taken);
    expect_to_go_on(Dataset::range(20).shuffle(6, 7).map([](at::Tensor x) { return x * 2; }), taken);
    expect_to_go_on(Dataset::range(40).shard(2, 1).window(3, 2), taken);
    expect_to_go_on(Dataset::range(9).batch(4).unbatch().enumerate(), taken);
    expect_to_go_on(Dataset::sample({Dataset::range(10), Dataset::range(100, 110)}), taken);
    expect_to_go_on(Dataset::range(50).filter([](at::Tensor x) { return x % 3 == 0; }), taken);
  }
}

TEST(Position, KeepsTheOrdersOfLaterRounds) {
  for (const int64_t taken : {0, 5, 19, 20, 21, 47, 60, 100}) {
    expect_to_go_on(Dataset::range(20).shuffle(20).repeat(), taken, 50);
    expect_to_go_on(Dataset::range(20).shuffle(20).repeat(4), taken);
    expect_to_go_on(Dataset::range(20).shuffle(8, 3).batch(3).repeat(4), taken);
    expect_to_go_on(Dataset::range(20).shuffle(5, 3, false).repeat(3).shuffle(4).batch(2), taken);
    expect_to_go_on(Dataset::range(20).filter([](at::Tensor x) { return x > 4; }).shuffle(5).repeat(4), taken);
    expect_to_go_on(Dataset::range(20).cache().shuffle(5).repeat(4), taken);
  }
}

TEST(Position, IsRightInsideOfRoundsOfRounds) {
  for (const int64_t taken : {3, 7, 13, 17, 22}) {
    expect_to_go_on(Dataset::range(3).shuffle(3, 1).repeat(2).repeat(4), taken);
    expect_to_go_on(Dataset::concatenate({Dataset::range(4).shuffle(4, 1).repeat(2), Dataset::range(10, 12)}).repeat(3),
                    taken);
  }
}

TEST(Position, CountsWhatCouldNotBeMade) {
  const Dataset dataset = Dataset::range(10).map_native([](Columns columns) {
    if (columns[0].tensor().item<int64_t>() == 1) throw invalid_argument("one");
    return columns;
  });
  SharedSource first(dataset.open(local_worker()));
  first.next();
  EXPECT_THROW(first.next(), Error);
  first.next();
  SharedSource rest(dataset.from(first.position()).open(local_worker()));
  EXPECT_EQ(rest_of(rest).front(), std::vector<int64_t>({3}));
}

TEST(Position, FarAwayIsGivenUpWhenNobodyWantsIt) {
  auto source =
      Dataset::range(3).shuffle(3).repeat().from("seed 1 draws 1 taken 4000000000000000000").open(local_worker());
  Cancellation run;
  run.cancel();
  const TakingFor taking(&run);
  EXPECT_THROW(source->next(), Error);
}

TEST(Zip, StaysInStepAfterAnError) {
  const Dataset one_fails = Dataset::range(4).map_native([](Columns columns) {
    if (columns[0].tensor().item<int64_t>() == 1) throw invalid_argument("one");
    return columns;
  });
  auto pairs = Dataset::zip({one_fails, Dataset::range(4)}).open(local_worker());
  pairs->next();
  EXPECT_THROW(pairs->next(), Error);
  const auto third = pairs->next();
  EXPECT_EQ((*third)[0].item<int64_t>(), (*third)[1].item<int64_t>());
}

TEST(Position, OfASequenceThatWentOnIsThatOfTheFirst) {
  const Dataset dataset = Dataset::range(100).shuffle(100).batch(4);
  SharedSource first(dataset.open(local_worker()));
  rest_of(first, 3);
  SharedSource second(dataset.from(first.position()).open(local_worker()));
  rest_of(second, 4);
  rest_of(first, 4);
  EXPECT_EQ(second.position(), first.position());
}

TEST(Position, LeavesOutWhatWasGivenBack) {
  const Dataset dataset = Dataset::range(10);
  SharedSource source(dataset.open(local_worker()));
  source.next();
  source.give_back(*source.next());
  SharedSource other(dataset.from(source.position()).open(local_worker()));
  EXPECT_EQ(rest_of(other).front(), std::vector<int64_t>({1}));
}

TEST(Position, IsGivenByIterators) {
  const Dataset dataset = Dataset::range(10).shuffle(10);
  Iterator all = dataset.iterator();
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  std::vector<int64_t> seen;
  for (int i = 0; i < 4; ++i) seen.push_back(take(all).item<int64_t>());
  Iterator rest = dataset.from(all.position()).iterator();
  for (int i = 0; i < 6; ++i) seen.push_back(take(rest).item<int64_t>());
  std::sort(seen.begin(), seen.end());
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(Position, ThatIsNoneIsRefused) {
  for (const std::string text : {"x", "seed 1 draws 2", "seed 1 draws 2 taken -1", "seed 1 draws 2 taken 3 4"}) {
    try {
      Dataset::range(3).from(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }
}

TEST(Position, OfAnotherDatasetIsRefused) {
  const Dataset dataset = Dataset::range(100).shuffle(10).batch(10);
  Iterator iterator = dataset.iterator();
  iterator.next<1>();
  const std::string position = iterator.position();

  EXPECT_NO_THROW(dataset.from(position).iterator().next<1>());
  EXPECT_NO_THROW(dataset.prefetch(2).from(position).iterator().next<1>()) << "the elements are the same";
  for (const Dataset& other : {Dataset::range(1'000).shuffle(10).batch(10), Dataset::range(100).shuffle(10).batch(1)}) {
    EXPECT_THAT(testing_support::error_of([&] { other.from(position).open(local_worker()); }),
                HasSubstr("is of another dataset"));
  }
}

TEST(Position, BehindTheEndIsRefused) {
  for (const Dataset& dataset : {Dataset::range(20).batch(10), Dataset::range(11).batch(10),
                                 Dataset::range(25).batch(10, /*drop_remainder=*/true), Dataset::range(1).repeat(2)}) {
    EXPECT_FALSE(dataset.from("seed 1 draws 2 taken 2").open(local_worker())->next()) << "the end itself";
    EXPECT_THAT(testing_support::error_of([&] { dataset.from("seed 1 draws 2 taken 3").open(local_worker())->next(); }),
                HasSubstr("behind 3 elements, but the dataset has 2"));
  }
}

}  // namespace
}  // namespace muster::dataset_position_test
