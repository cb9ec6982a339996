#include "muster/lines/parcel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/test_wait.h"
#include "muster/lines/test_line.h"

namespace muster {
namespace {

using testing_support::eventually;
using testing_support::TestLine;

const auto kForever = std::chrono::steady_clock::time_point::max();

std::vector<NearConnection::Place> places_of(std::vector<at::Tensor>& tensors) {
  std::vector<NearConnection::Place> places;
  for (at::Tensor& tensor : tensors) places.push_back({tensor.mutable_data_ptr(), tensor.nbytes()});
  return places;
}

std::vector<at::Tensor> like(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& tensor : tensors) made.push_back(torch::zeros_like(tensor));
  return made;
}

// Takes the line and sends in the background.
uint64_t send(LineOut& line, std::vector<at::Tensor> tensors) {
  std::shared_ptr<Parcel> parcel = line.take();
  EXPECT_TRUE(parcel);
  const uint64_t number = parcel->name().number;
  parcel->fill(std::move(tensors));
  send_in_background(std::move(parcel));
  return number;
}

TEST(Parcel, ArrivesWholeHoweverLongItIs) {
  TestLine line;
  // More than the kernel keeps, nothing at all, and more pieces than one call of it takes.
  std::vector<std::vector<at::Tensor>> all{{torch::randn({20, 1'000'000})}, {torch::empty({0}), torch::randn({3})}, {}};
  for (int i = 0; i < 2500; ++i) all.back().push_back(torch::randn({i % 7}));
  for (const std::vector<at::Tensor>& tensors : all) {
    std::vector<at::Tensor> got = like(tensors);
    const uint64_t number = send(*line.out, tensors);
    ASSERT_TRUE(line.in->receive(number, places_of(got), kForever));
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(torch::equal(got[i], tensors[i]));
  }
}

TEST(Parcel, HasItsLineToItselfUntilItIsConfirmed) {
  TestLine line;
  const std::vector<at::Tensor> tensors{torch::randn({1000})};
  std::vector<at::Tensor> got = like(tensors);
  const uint64_t number = send(*line.out, tensors);
  EXPECT_FALSE(line.out->take());
  ASSERT_TRUE(line.in->receive(number, places_of(got), kForever));
  ASSERT_TRUE(eventually([&] { return send(*line.out, tensors) == number + 1; }));
}

TEST(Parcel, LetsGoOfItsTensorsWhenTheyAreSent) {
  TestLine line;
  at::Tensor tensor = torch::randn({1000});
  std::shared_ptr<Parcel> parcel = line.out->take();
  parcel->fill({tensor});
  EXPECT_EQ(tensor.use_count(), 2u);
  EXPECT_TRUE(parcel->send_some());
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(Parcel, ThatIsAnotherOneBreaksTheLine) {
  for (const bool number : {true, false}) {
    TestLine line;
    const std::vector<at::Tensor> tensors{torch::randn({1000})};
    std::vector<at::Tensor> got = number ? like(tensors) : std::vector<at::Tensor>{torch::zeros({999})};
    const uint64_t sent = send(*line.out, tensors);
    EXPECT_FALSE(line.in->receive(number ? sent + 1 : sent, places_of(got), kForever));
    EXPECT_TRUE(line.in->broken());
    EXPECT_TRUE(eventually([&] { return !line.out->take() && line.out->broken(); }));
  }
}

TEST(Parcel, ThatIsDroppedHalfwayEndsItsReceiversWait) {
  TestLine line;
  std::vector<at::Tensor> tensors{torch::randn({20, 1'000'000})}, got = like(tensors);
  {
    std::shared_ptr<Parcel> parcel = line.out->take();
    parcel->fill(tensors);
    ASSERT_FALSE(parcel->send_some());
  }
  EXPECT_FALSE(line.in->receive(1, places_of(got), kForever));
}

TEST(Parcel, OfAnEarlierCallDoesNotBreakTheLineOfTheNext) {
  TestLine line;
  std::vector<at::Tensor> tensors{torch::randn({1000})}, got = like(tensors);
  std::shared_ptr<Parcel> first = line.out->take();
  first->fill(tensors);
  ASSERT_TRUE(first->send_some());
  ASSERT_TRUE(line.in->receive(1, places_of(got), kForever));
  std::shared_ptr<Parcel> second;
  ASSERT_TRUE(eventually([&] { return (second = line.out->take()) != nullptr; }));
  first->break_off();
  EXPECT_FALSE(line.out->broken());
  second->break_off();
  EXPECT_TRUE(line.out->broken());
}

TEST(LineIn, GivesUpAtTheDeadlineOrWhenTheCallIsCancelled) {
  TestLine silent, cancelled;
  std::vector<at::Tensor> got{torch::zeros({4})};
  EXPECT_FALSE(silent.in->receive(1, places_of(got), std::chrono::steady_clock::now() + std::chrono::milliseconds(10)));

  Cancellation cancellation;
  std::thread canceller([&] { cancellation.cancel(); });
  EXPECT_FALSE(cancelled.in->receive(1, places_of(got), kForever, &cancellation));
  canceller.join();
}

TEST(LineIn, IsReadByOneAtATime) {
  TestLine line;
  std::vector<at::Tensor> got{torch::zeros({4})}, other{torch::zeros({4})};
  std::atomic<int> taken = 0;
  std::thread first([&] { taken += line.in->receive(1, places_of(got), kForever) ? 1 : 0; });
  std::thread second([&] { taken += line.in->receive(1, places_of(other), kForever) ? 1 : 0; });
  first.join();
  second.join();
  EXPECT_EQ(taken, 0) << "who comes second has been told a lie, and so has whoever trusts the line";
}

TEST(LinesOut, GiveAnotherLineWhileOneIsInUseAndForgetThoseThatBroke) {
  TestLine one, two;
  LinesOut lines;
  EXPECT_FALSE(lines.take());
  lines.add(one.out);
  lines.add(two.out);
  std::shared_ptr<Parcel> first = lines.take(), second = lines.take();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->name().line, 0u);
  EXPECT_FALSE(lines.take());
  first.reset();  // with nothing sent
  EXPECT_EQ(lines.size(), 1u);
  two.in.reset();
  EXPECT_TRUE(eventually([&] { return lines.look() == 0; }));
}

}  // namespace
}  // namespace muster
