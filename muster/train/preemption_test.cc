#include "muster/train/preemption.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <filesystem>

#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

class PreemptionTest : public testing::Test {
 protected:
  PreemptionTest() { std::filesystem::create_directories(directory_); }
  ~PreemptionTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_ =
      (std::filesystem::temp_directory_path() / str_cat("muster-preemption-", random_id())).string();
  const Strategy strategy_;
  Variable variable_{torch::ones({2})};
  Checkpoints checkpoints_{strategy_, {.directory = directory_}};
};

TEST_F(PreemptionTest, SavesTheStepAfterASignalAndEndsTheLoop) {
  Preemption preemption(strategy_, checkpoints_);
  EXPECT_FALSE(preemption.after_step(1));
  EXPECT_EQ(checkpoints_.newest(), std::nullopt);

  ::raise(SIGTERM);

  EXPECT_TRUE(preemption.after_step(2));
  EXPECT_EQ(checkpoints_.newest(), 2);
  EXPECT_EQ(Checkpoints(strategy_, {.directory = directory_}).restore(), 2);
}

TEST_F(PreemptionTest, DoesNotSaveAStepTwice) {
  Preemption preemption(strategy_, checkpoints_);
  checkpoints_.save(2);
  ::raise(SIGTERM);

  EXPECT_TRUE(preemption.after_step(2));
}

TEST_F(PreemptionTest, GivesTheSignalBack) {
  struct sigaction ours {
  }, after{};
  ours.sa_handler = [](int) {};
  struct sigaction before {};
  ::sigaction(SIGTERM, &ours, &before);
  {
    const Preemption first(strategy_, checkpoints_);
    Preemption second(strategy_, checkpoints_);
    ::raise(SIGTERM);
    EXPECT_TRUE(second.after_step(1));
  }
  {
    Preemption later(strategy_, checkpoints_);
    EXPECT_FALSE(later.after_step(2)) << "the signal was for those before";
  }
  ::sigaction(SIGTERM, &before, &after);
  EXPECT_EQ(after.sa_handler, ours.sa_handler);
}

TEST_F(PreemptionTest, RefusesATimeThatIsLessThanNothing) {
  EXPECT_THROW(Preemption(strategy_, checkpoints_, {.look_every = std::chrono::milliseconds(-1)}), Error);
}

}  // namespace
}  // namespace muster
