#include "muster/rpc/calls/byte_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

namespace muster::byte_gate_test {
namespace {

constexpr std::chrono::hours kLong(10);

struct Calls {
  explicit Calls(int64_t most, std::chrono::milliseconds patience = kLong)
      : gate(std::make_shared<ByteGate>(most, patience)) {}

  void take(int64_t bytes) {
    const size_t number = inside.size();
    inside.emplace_back();
    auto at_once = gate->take(bytes, [this, number](ByteGate::Hold hold) { inside[number] = std::move(hold); });
    if (at_once) inside[number] = *std::move(at_once);
  }

  std::shared_ptr<ByteGate> gate;
  std::vector<std::optional<ByteGate::Hold>> inside;  // nothing: it waits, or has ended
};

TEST(ByteGate, LetsInAsManyBytesAsFit) {
  Calls calls(100);
  for (int64_t bytes : {60, 40, 1}) calls.take(bytes);

  EXPECT_TRUE(calls.inside[0] && calls.inside[1]);
  EXPECT_FALSE(calls.inside[2]);
  EXPECT_EQ(calls.gate->held(), 100);
  EXPECT_EQ(calls.gate->waiting(), 1u);

  calls.inside[1].reset();

  EXPECT_TRUE(calls.inside[2]);
  EXPECT_EQ(calls.gate->held(), 61);
}

TEST(ByteGate, LetsInWhoeverIsLargerThanAllOfItAlone) {
  Calls calls(100);
  calls.take(10);
  calls.take(1'000);
  calls.take(10);
  EXPECT_FALSE(calls.inside[1]) << "somebody else is inside";
  EXPECT_FALSE(calls.inside[2]) << "nobody overtakes it";

  calls.inside[0].reset();

  EXPECT_TRUE(calls.inside[1]);
  EXPECT_FALSE(calls.inside[2]);
  calls.inside[1].reset();
  EXPECT_TRUE(calls.inside[2]);
}

TEST(ByteGate, LetsOneInWhenNothingEnds) {
  Calls patient(100), stuck(100, std::chrono::milliseconds(0));
  for (Calls* calls : {&patient, &stuck}) {
    for (int i = 0; i < 3; ++i) calls->take(100);
    calls->gate->look();
  }

  EXPECT_FALSE(patient.inside[1]);
  EXPECT_TRUE(stuck.inside[1]);
  EXPECT_FALSE(stuck.inside[2]) << "one at a time";
}

TEST(ByteGate, CountsOnWhateverCallersSayOfThemselves) {
  Calls calls(100, std::chrono::milliseconds(0));
  for (int i = 0; i < 3; ++i) calls.take(std::numeric_limits<int64_t>::max());
  for (int i = 0; i < 2; ++i) calls.gate->look();
  calls.take(std::numeric_limits<int64_t>::min());

  EXPECT_GT(calls.gate->held(), 100);
  EXPECT_FALSE(calls.inside[3]) << "those who are inside hold more than there may be";

  calls.inside.clear();
  EXPECT_EQ(calls.gate->held(), 0);
}

TEST(ByteGate, NeverHoldsMoreThanItMayWhoeverComesAndGoes) {
  auto gate = std::make_shared<ByteGate>(1'000, kLong);
  std::atomic<int64_t> inside = 0, most = 0, entered = 0;
  auto call = [&](int64_t bytes) {
    auto enter = [&, bytes](const ByteGate::Hold&) {
      const int64_t now = inside += bytes;
      for (int64_t known = most; now > known && !most.compare_exchange_weak(known, now);) {
      }
      inside -= bytes;
      ++entered;
    };
    if (const auto at_once = gate->take(bytes, enter)) enter(*at_once);
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 2'000; ++i) call(1 + (i * 37 + t * 101) % 700);
      });
    }
  }

  EXPECT_EQ(entered, 8'000);
  EXPECT_LE(most, 1'000);
  EXPECT_EQ(gate->held(), 0);
}

}  // namespace
}  // namespace muster::byte_gate_test
