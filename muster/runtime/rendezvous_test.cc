#include "muster/runtime/rendezvous.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

namespace muster {
namespace {

struct Got {
  Status status;
  at::Tensor value;
};

ReceiveDone into(std::optional<Got>& got) {
  return [&](const Status& status, at::Tensor value) { got = {status, std::move(value)}; };
}

TEST(Rendezvous, HandsOverWhoeverComesFirst) {
  Rendezvous rendezvous;
  std::optional<Got> early, late;

  rendezvous.receive(1, 0, into(early));
  EXPECT_FALSE(early);
  rendezvous.send(1, 0, torch::ones({2}));
  rendezvous.send(1, 1, torch::zeros({2}));
  rendezvous.receive(1, 1, into(late));

  EXPECT_TRUE(torch::equal(early.value().value, torch::ones({2})));
  EXPECT_TRUE(torch::equal(late.value().value, torch::zeros({2})));
  EXPECT_EQ(rendezvous.waiting_values(), 0u);
}

TEST(Rendezvous, TellsStepsApart) {
  Rendezvous rendezvous;
  std::optional<Got> got;

  rendezvous.receive(1, 0, into(got));
  rendezvous.send(2, 0, torch::ones({2}));

  EXPECT_FALSE(got);
  EXPECT_EQ(rendezvous.waiting_values(), 1u);
}

TEST(Rendezvous, TellsEverybodyWhyAStepWasAborted) {
  Rendezvous rendezvous;
  std::optional<Got> waiting, later;
  const Status why(StatusCode::kInternal, "fantasia!", "/job:ps/task:0");

  rendezvous.receive(1, 0, into(waiting));
  rendezvous.send(1, 1, torch::ones({2}));
  rendezvous.abort(1, why);
  rendezvous.receive(1, 2, into(later));

  EXPECT_EQ(waiting.value().status, why);
  EXPECT_EQ(later.value().status, why);
  EXPECT_EQ(rendezvous.waiting_values(), 0u);
  EXPECT_THROW(rendezvous.send(1, 3, torch::ones({2})), Error);
}

TEST(Rendezvous, RefusesASecondValueAndASecondReader) {
  Rendezvous rendezvous;
  std::optional<Got> first, second;

  rendezvous.send(1, 0, torch::ones({2}));
  EXPECT_THROW(rendezvous.send(1, 0, torch::ones({2})), Error);
  rendezvous.receive(1, 1, into(first));
  rendezvous.receive(1, 1, into(second));

  EXPECT_FALSE(first);
  EXPECT_EQ(second.value().status.code(), StatusCode::kAlreadyExists);
}

TEST(Rendezvous, GivesUpTheWaiterThatIsMeantAndNoOther) {
  Rendezvous rendezvous;
  std::optional<Got> first, second, third;
  const Status why(StatusCode::kCancelled, "the caller has gone");

  const uint64_t one = rendezvous.receive(1, 0, into(first));
  const uint64_t two = rendezvous.receive(1, 0, into(second));
  rendezvous.give_up(1, 0, two, why);
  EXPECT_FALSE(first) << "it has its own caller";
  rendezvous.give_up(1, 0, one, why);
  EXPECT_EQ(first.value().status, why);
  rendezvous.receive(1, 0, into(third));
  rendezvous.give_up(1, 0, one, why);
  rendezvous.send(1, 0, torch::ones({2}));

  EXPECT_EQ(second.value().status.code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(torch::equal(third.value().value, torch::ones({2})));
}

}  // namespace
}  // namespace muster
