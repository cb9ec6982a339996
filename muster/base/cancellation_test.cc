#include "muster/base/cancellation.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace muster {
namespace {

TEST(Cancellation, StartsNotCancelled) {
  const Cancellation cancellation;

  EXPECT_FALSE(cancellation.cancelled());
  EXPECT_TRUE(cancellation.status().ok());
  EXPECT_NO_THROW(cancellation.throw_if_cancelled());
}

TEST(Cancellation, KeepsTheFirstReason) {
  Cancellation cancellation;

  cancellation.cancel(Status(StatusCode::kAborted, "first"));
  cancellation.cancel(Status(StatusCode::kInternal, "second"));

  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_EQ(cancellation.status(), Status(StatusCode::kAborted, "first"));
}

TEST(Cancellation, ThrowsItsReason) {
  Cancellation cancellation;
  cancellation.cancel(Status(StatusCode::kDeadlineExceeded, "step 7 took too long"));

  try {
    cancellation.throw_if_cancelled();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status(StatusCode::kDeadlineExceeded, "step 7 took too long"));
  }
}

TEST(Cancellation, CallsBackExactlyOnceInTheOrderOfRegistration) {
  Cancellation cancellation;
  std::vector<int> calls;
  const auto first = cancellation.on_cancel([&](const Status&) { calls.push_back(1); });
  const auto second = cancellation.on_cancel([&](const Status&) { calls.push_back(2); });

  cancellation.cancel();
  cancellation.cancel();

  EXPECT_THAT(calls, testing::ElementsAre(1, 2));
}

TEST(Cancellation, CallsBackAtOnceWhenItIsAlreadyCancelled) {
  Cancellation cancellation;
  cancellation.cancel(Status(StatusCode::kAborted, "why"));
  Status seen;

  const auto registration = cancellation.on_cancel([&](const Status& why) { seen = why; });

  EXPECT_EQ(seen, Status(StatusCode::kAborted, "why"));
}

TEST(Cancellation, DoesNotCallBackOnceTheRegistrationIsGone) {
  Cancellation cancellation;
  int calls = 0;
  auto kept = cancellation.on_cancel([&](const Status&) { ++calls; });
  {
    const auto dropped = cancellation.on_cancel([&](const Status&) { calls += 100; });
  }
  const auto moved = std::move(kept);

  cancellation.cancel();

  EXPECT_EQ(calls, 1);
}

TEST(Cancellation, HoldsNoLockWhileACallbackRuns) {
  Cancellation cancellation;
  Status seen;
  std::optional<Cancellation::Registration> nested;
  std::optional<Cancellation::Registration> own;
  own = cancellation.on_cancel([&](const Status&) {
    nested = cancellation.on_cancel([&](const Status& why) { seen = why; });
    own.reset();
  });

  cancellation.cancel(Status(StatusCode::kAborted, "why"));

  EXPECT_EQ(seen, Status(StatusCode::kAborted, "why"));
}

TEST(Cancellation, LetsARegistrationEndOnlyWhenItsCallbackHas) {
  Cancellation cancellation;
  absl::Notification running;
  absl::Notification go_on;
  std::atomic<bool> finished = false;
  auto registration = cancellation.on_cancel([&](const Status&) {
    running.Notify();
    go_on.WaitForNotification();
    finished = true;
  });
  std::jthread canceller([&] { cancellation.cancel(); });
  running.WaitForNotification();

  std::jthread releaser([&] { go_on.Notify(); });
  registration.reset();

  EXPECT_TRUE(finished);
}

TEST(Cancellation, MayBeDestroyedBeforeItsRegistrations) {
  Cancellation::Registration registration;
  {
    Cancellation cancellation;
    registration = cancellation.on_cancel([](const Status&) { FAIL() << "was never cancelled"; });
  }

  registration.reset();
}

TEST(Cancellation, MayBeDestroyedByItsCallback) {
  auto cancellation = std::make_unique<Cancellation>();
  const auto registration = cancellation->on_cancel([&](const Status&) { cancellation.reset(); });

  cancellation->cancel();

  EXPECT_EQ(cancellation, nullptr);
}

}  // namespace
}  // namespace muster
