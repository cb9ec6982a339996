#include "muster/runtime/worker/shared_source.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <thread>

namespace muster {
namespace {

// Counts from 0 up.
class Counting : public ElementSource {
 public:
  explicit Counting(int64_t end) : end_(end) {}
  std::optional<Element> next() override {
    const int64_t number = next_++;
    return number < end_ ? std::optional<Element>({torch::tensor(number)}) : std::nullopt;
  }

 private:
  const int64_t end_;
  std::atomic<int64_t> next_{0};
};

int64_t number_in(const std::optional<Element>& element) { return element->at(0).item<int64_t>(); }

TEST(SharedSource, HandsOutAgainWhatWasGivenBack) {
  SharedSource source(std::make_shared<Counting>(3));
  auto first = source.next(), second = source.next();

  source.give_back(std::move(*second));
  source.give_back(std::move(*first));

  EXPECT_EQ(source.taken(), 0);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(number_in(source.next()), i);
  EXPECT_FALSE(source.next());
  EXPECT_EQ(source.taken(), 3);
}

TEST(SharedSource, SaysWhenWhatWasGivenBackIsTakenAgain) {
  class Told : public Counting {
   public:
    Told() : Counting(3) {}
    void taken_again() override { ++times; }
    int times = 0;
  };
  const auto told = std::make_shared<Told>();
  SharedSource source(told);

  source.give_back(*source.next());
  EXPECT_EQ(told->times, 0);
  source.next();
  EXPECT_EQ(told->times, 1);
  source.next();
  EXPECT_EQ(told->times, 1) << "that one is new";
}

TEST(SharedSource, HandsOutTheLastOneAgainAfterItsEnd) {
  SharedSource source(std::make_shared<Counting>(1));
  auto only = source.next();
  EXPECT_FALSE(source.next());

  source.give_back(std::move(*only));

  EXPECT_EQ(number_in(source.next()), 0);
  EXPECT_FALSE(source.next());
}

TEST(SharedSource, HandsOutEachOnceHoweverOftenTheyAreGivenBack) {
  constexpr int64_t kCount = 1000;
  SharedSource source(std::make_shared<Counting>(kCount));
  std::vector<std::vector<int64_t>> kept(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : kept) {
      threads.emplace_back([&source, &mine] {
        for (int64_t turn = 0; auto element = source.next(); ++turn) {
          if (turn % 3 == 0) {
            source.give_back(std::move(*element));
          } else {
            mine.push_back(number_in(element));
          }
        }
      });
    }
  }

  std::set<int64_t> seen;
  size_t count = 0;
  for (const auto& mine : kept) {
    seen.insert(mine.begin(), mine.end());
    count += mine.size();
  }
  while (auto element = source.next()) {
    seen.insert(number_in(element));
    ++count;
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kCount));
  EXPECT_EQ(count, static_cast<size_t>(kCount));
}

}  // namespace
}  // namespace muster
