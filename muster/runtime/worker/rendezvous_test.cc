#include "muster/runtime/worker/rendezvous.h"

#include <gtest/gtest.h>
#include <malloc.h>
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

TEST(Rendezvous, ForgetsTheFirstOfManyStepsThatWereAborted) {
  Rendezvous rendezvous;
  const std::string words(2000, 'x');

  for (uint64_t step = 1; step <= 3000; ++step) {
    rendezvous.abort(step, Status(StatusCode::kInternal, str_cat(step, words), "/job:ps/task:0", "detail"));
  }

  std::optional<Got> first, last;
  rendezvous.receive(1, 0, into(first));
  rendezvous.receive(3000, 0, into(last));
  EXPECT_FALSE(first);
  EXPECT_EQ(last.value().status, Status(StatusCode::kInternal, str_cat(3000, words), "/job:ps/task:0", "detail"));
}

// Small blocks that stay keep the pages around them.
TEST(Rendezvous, KeepsNoBlocksOfMemoryForStepsThatWereAborted) {
  Rendezvous rendezvous;
  auto abort = [&](uint64_t step) {
    rendezvous.abort(step, Status(StatusCode::kCancelled, str_cat("step ", step, std::string(100, 'x')), "/job:ps"));
  };
  abort(0);
  const size_t before = mallinfo2().uordblks;

  for (uint64_t step = 1; step < 1000; ++step) abort(step);

  EXPECT_LT(mallinfo2().uordblks, before + 10'000);
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
