#include "muster/rpc/calls/call_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "muster/base/blocking.h"
#include "muster/base/test_wait.h"

namespace muster {
namespace {

using testing_support::eventually;

// Calls that wait until the test lets them go, and say so or do not.
class Jam {
 public:
  Jam(CallGate& gate, int calls, bool says_so) {
    for (int i = 0; i < calls; ++i) {
      threads_.emplace_back([&, says_so] {
        gate.run([&, says_so] {
          std::optional<Waiting> waiting;
          if (says_so) waiting.emplace();
          ++waiting_;
          gone_on_.wait();
        });
      });
    }
    eventually([&] { return waiting_ == calls; });
  }
  void end() { go_on_.set_value(); }

 private:
  std::promise<void> go_on_;
  std::shared_future<void> gone_on_ = go_on_.get_future().share();
  std::atomic<int> waiting_ = 0;
  std::vector<std::jthread> threads_;
};

TEST(CallGate, LetsOthersInWhileThoseInsideSayThatTheyWait) {
  std::atomic<int> done = 0;
  CallGate gate(2);
  Jam jam(gate, 2, /*says_so=*/true);

  gate.run([&] { ++done; });

  EXPECT_TRUE(eventually([&] { return done == 1; }));
  jam.end();
}

TEST(CallGate, LeavesTheThreadToWhoeverLentItIfAsManyAsMayWorkAreWaiting) {
  std::promise<void> go_on;
  const std::shared_future<void> gone_on = go_on.get_future().share();
  std::atomic<int> waiting = 0;
  CallGate gate(2);
  Jam jam(gate, 2, /*says_so=*/true);

  for (int i = 0; i < 10; ++i) {
    gate.run([&, gone_on] {
      const Waiting now;
      ++waiting;
      gone_on.wait();
    });
  }

  EXPECT_TRUE(eventually([&] { return waiting == 10; }));
  go_on.set_value();
  jam.end();
}

TEST(CallGate, LetsThoseInThatWereKeptBackWhenOneInsideBeginsToWait) {
  std::atomic<int> done = 0;
  std::promise<void> inside, kept_back, go_on;
  CallGate gate(1);
  std::jthread first([&] {
    gate.run([&] {
      inside.set_value();
      kept_back.get_future().wait();
      const Waiting waiting;
      go_on.get_future().wait();
    });
  });
  inside.get_future().wait();
  gate.run([&] { ++done; });
  EXPECT_EQ(done, 0);

  kept_back.set_value();

  EXPECT_TRUE(eventually([&] { return done == 1; }));
  go_on.set_value();
}

TEST(CallGate, LetsThoseInThatWereKeptBackForLongerThanAMoment) {
  std::atomic<int> done = 0;
  CallGate gate(2);
  Jam jam(gate, 2, /*says_so=*/false);

  gate.run([&] { ++done; });
  EXPECT_EQ(done, 0);

  EXPECT_TRUE(eventually([&] {
    gate.look();
    return done == 1;
  }));
  jam.end();
}

TEST(CallGate, RunsWhatWasKeptBackWhenOneInsideEnds) {
  std::atomic<int> done = 0;
  CallGate gate(1);
  {
    Jam jam(gate, 1, /*says_so=*/false);
    gate.run([&] { ++done; });
    gate.run([&] { ++done; });
    EXPECT_EQ(done, 0);
    jam.end();
  }
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace muster
