#include "muster/data/sources/part_queue.h"

#include <gtest/gtest.h>

#include "muster/base/test_errors.h"

namespace muster::part_queue_test {
namespace {

using testing_support::caught;

using What = PartsGiven::What;

// A queue whose source has ended, and whoever hands out to it.
class PartQueueAtItsEnd : public ::testing::Test {
 protected:
  PartQueueAtItsEnd() { wait_for_next({}); }

  void wait_for_next(const PartsGiven& given) {
    queue_.hand_out(given, [this](const Status&, const PartsWanted& wanted) {
      wanted_.push_back(wanted);
      if (answer_) wait_for_next({.request = wanted.request, .what = *answer_});
    });
  }
  // How a run fares that asks so.
  Status ask(int64_t has, int64_t needs) {
    return caught([&] {
      const Taking how{.may_come_back = true, .has = has, .needs = needs};
      if (!queue_.more_after_end(how, [] { throw cancelled("nobody wants it"); })) throw out_of_range("the end");
    });
  }
  void take(int64_t elements) {
    for (int64_t i = 0; i < elements; ++i) queue_.returned(0);
  }

  PartQueue queue_;
  std::optional<What> answer_;  // to each request, at once
  std::vector<PartsWanted> wanted_;
};

TEST_F(PartQueueAtItsEnd, SaysHowManyElementsNobodyWorksWith) {
  answer_ = What::kElsewhere;
  take(3);

  EXPECT_TRUE(is_read_elsewhere(ask(/*has=*/3, /*needs=*/4)));
  take(1);
  EXPECT_TRUE(is_read_elsewhere(ask(/*has=*/3, /*needs=*/4)));

  ASSERT_EQ(wanted_.size(), 2u);
  EXPECT_EQ(wanted_[0].idle, 3);
  EXPECT_EQ(wanted_[0].needs, 4);
  EXPECT_EQ(wanted_[1].idle, 0) << "another run has the fourth";
}

TEST_F(PartQueueAtItsEnd, SaysSoNoMoreOnceARunHasThemAgain) {
  answer_ = What::kElsewhere;
  take(3);
  EXPECT_TRUE(is_read_elsewhere(ask(/*has=*/3, /*needs=*/4)));
  answer_.reset();

  queue_.taken_again();
  wait_for_next({});
  queue_.taken_again();

  ASSERT_EQ(wanted_.size(), 2u) << "the second time there is nothing new";
  EXPECT_EQ(wanted_[1].request, 0);
  EXPECT_EQ(wanted_[1].idle, 0);
}

TEST_F(PartQueueAtItsEnd, DoesNotEndForOneWhoNeedsLessThanWhoWasToldSo) {
  take(3);
  EXPECT_EQ(ask(/*has=*/3, /*needs=*/4).code(), StatusCode::kCancelled);
  ASSERT_EQ(wanted_.size(), 1u);
  answer_ = What::kEnd;
  wait_for_next({.request = wanted_[0].request, .what = What::kEnd});

  EXPECT_TRUE(is_read_elsewhere(ask(/*has=*/0, /*needs=*/1)));
  EXPECT_EQ(ask(/*has=*/0, /*needs=*/1).message(), "the end") << "which was asked for it";
}

}  // namespace
}  // namespace muster::part_queue_test
