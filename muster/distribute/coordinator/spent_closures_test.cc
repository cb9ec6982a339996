#include "muster/distribute/coordinator/spent_closures.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

std::shared_ptr<ScheduledClosure> closure_of(const at::Tensor& argument) {
  auto closure = std::make_shared<ScheduledClosure>();
  closure->arguments = {argument};
  return closure;
}

TEST(SpentClosures, LetGoOfWhatIsNotTheirsAtOnce) {
  SpentClosures spent;
  auto held = std::make_shared<int>(1);
  const at::Tensor large = at::ones({1024});
  auto closure = closure_of(large);
  closure->holds = {held};
  const std::shared_ptr<RemoteResult> result = closure->result;
  SpentClosures::Batch batch;
  batch.push_back(std::move(closure));

  spent.give(std::move(batch));

  EXPECT_EQ(spent.count(), 1u);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(large.use_count(), 1u);
  EXPECT_EQ(result.use_count(), 1);
}

TEST(SpentClosures, AreFreedAsOthersAreMade) {
  SpentClosures spent;
  const at::Tensor small = at::ones({});
  SpentClosures::Batch batch;
  for (int i = 0; i < 3; ++i) batch.push_back(closure_of(small));
  spent.give(std::move(batch));
  EXPECT_EQ(small.use_count(), 4u);

  spent.free_some();
  spent.free_some();

  EXPECT_EQ(spent.count(), 0u);
  EXPECT_EQ(small.use_count(), 1u);
}

TEST(SpentClosures, AreNotThoseThatSomebodyElseHas) {
  SpentClosures spent;
  const auto held = std::make_shared<int>(1);
  const auto queued = closure_of({});
  queued->holds = {held};

  spent.give({queued});

  EXPECT_EQ(spent.count(), 0u);
  EXPECT_EQ(queued->holds.size(), 1u);
}

TEST(SpentClosures, AreOnlySoMany) {
  SpentClosures spent;
  SpentClosures::Batch batch;
  for (size_t i = 0; i < SpentClosures::kMost + 1; ++i) batch.push_back(std::make_shared<ScheduledClosure>());

  spent.give(std::move(batch));

  EXPECT_EQ(spent.count(), SpentClosures::kMost);
  spent.free_all();
  EXPECT_EQ(spent.count(), 0u);
}

}  // namespace
}  // namespace muster
