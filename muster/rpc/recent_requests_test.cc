#include "muster/rpc/recent_requests.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster {
namespace {

Frame answer(const std::string& text) {
  Frame frame;
  frame.envelope.set_header(text);
  return frame;
}

RecentRequests::Waiter into(std::string& text) {
  return [&](const Status& status, const Frame& frame) {
    text = status.ok() ? frame.envelope.header() : std::string(name_of(status.code()));
  };
}

TEST(RecentRequests, AcceptsTheIdZeroAlways) {
  RecentRequests recent(6, 1000);
  std::string got;

  EXPECT_TRUE(recent.begin(0, into(got)));
  EXPECT_TRUE(recent.begin(0, into(got)));
  recent.finish(0, Status(), answer("a"));

  EXPECT_EQ(recent.size(), 0u);
}

TEST(RecentRequests, GivesARepeatedRequestTheFirstAnswer) {
  RecentRequests recent(6, 1000);
  std::string got;

  EXPECT_TRUE(recent.begin(7, into(got)));
  recent.finish(7, Status(), answer("first"));
  EXPECT_FALSE(recent.begin(7, into(got)));

  EXPECT_EQ(got, "first");
}

TEST(RecentRequests, LetsARepeatedRequestWaitForTheOneThatRuns) {
  RecentRequests recent(6, 1000);
  std::string got;

  EXPECT_TRUE(recent.begin(7, into(got)));
  EXPECT_FALSE(recent.begin(7, into(got)));
  EXPECT_EQ(got, "");
  recent.finish(7, Status(StatusCode::kInternal, "no"), {});

  EXPECT_EQ(got, "INTERNAL");
}

TEST(RecentRequests, ForgetsTheOldestOfMoreThanItsWindow) {
  RecentRequests recent(6, 1000);
  std::string got;

  for (uint64_t id = 1; id <= 7; ++id) {
    EXPECT_TRUE(recent.begin(id, into(got)));
    recent.finish(id, Status(), answer(std::to_string(id)));
  }

  EXPECT_FALSE(recent.begin(2, into(got)));
  EXPECT_EQ(got, "2");
  EXPECT_TRUE(recent.begin(1, into(got))) << "the seventh has evicted the first";
}

TEST(RecentRequests, KeepsNoAnswerThatIsTooLarge) {
  RecentRequests recent(6, 1000);
  std::string got;
  Frame large;
  large.tensors.push_back(torch::zeros({1000}));

  EXPECT_TRUE(recent.begin(7, into(got)));
  recent.finish(7, Status(), large);
  EXPECT_FALSE(recent.begin(7, into(got)));

  EXPECT_EQ(got, "ABORTED");
}

}  // namespace
}  // namespace muster
