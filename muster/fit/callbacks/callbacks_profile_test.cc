// TensorBoardOptions::profile_step
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"
#include "muster/runtime/executor/profile.h"

namespace muster::callbacks_profile_test {
namespace {

using testing_support::message_of;
using testing_support::ScopedDirectory;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProfileOfAStep : public ::testing::Test {
 protected:
  Model model(const Strategy& strategy, int64_t steps_per_execution = 1) {
    return compile(strategy.make<torch::nn::Linear>(2, 1),
                   {.loss = mean_squared_error, .steps_per_execution = steps_per_execution});
  }
  TensorBoard board(int64_t step) { return TensorBoard({.directory = directory_.path(), .profile_step = step}); }
  std::string path() const { return directory_.path() + "/profile/worker-0.json"; }
  // How often an op is in it.
  int64_t count(const std::string& op) const {
    std::ifstream file(path());
    const nlohmann::json trace = nlohmann::json::parse(file);
    return std::ranges::count_if(trace.at("traceEvents"), [&](const auto& event) { return event.at("name") == op; });
  }

  const ScopedDirectory directory_;
  const at::Tensor x_ = torch::ones({32, 2});
  const Dataset data_ = Dataset::tensors({x_, x_.sum(1, true)}).batch(8);  // 4 batches
};

TEST_F(ProfileOfAStep, IsOneOfTheProgramInWhichItIsTaken) {
  Model one = model(Strategy()), two = model(Strategy(), 2);

  one.fit(data_, {.epochs = 2, .callbacks = {board(6)}, .verbose = 0});
  const int64_t of_one = count("aten::mse_loss");
  two.fit({x_, x_.sum(1, true)}, {.epochs = 2, .batch_size = 8, .callbacks = {board(7)}, .verbose = 0});

  EXPECT_EQ(of_one, 1);
  EXPECT_EQ(count("aten::mse_loss"), 2);
}

TEST_F(ProfileOfAStep, HasBothDevicesOfAProcess) {
  model(MirroredStrategy({"/device:CPU:0", "/device:CPU:1"})).fit(data_, {.callbacks = {board(2)}, .verbose = 0});

  EXPECT_EQ(count("aten::mse_loss"), 2);
}

TEST_F(ProfileOfAStep, IsToldToThoseWhoWantThatStep) {
  class Looks : public Callback {
   public:
    Looks(int64_t step, std::vector<std::string>& seen) : step_(step), seen_(seen) {}
    std::optional<int64_t> profiled_step() const override { return step_; }
    void on_profile(Training& training, const Profile& profile) override {
      seen_.push_back(str_cat(step_, " at ", training.steps, profile.events().empty() ? " without ops" : ""));
    }

   private:
    const int64_t step_;
    std::vector<std::string>& seen_;
  };
  std::vector<std::string> seen;

  // 5 steps an epoch, as the dataset says: 2, 2 and 1.
  model(Strategy(), 2)
      .fit(Dataset::tensors({x_, x_.sum(1, true)}).batch(7),
           {.epochs = 2, .callbacks = {Looks(7, seen), Looks(6, seen), Looks(1, seen)}, .verbose = 0});

  EXPECT_THAT(seen, ElementsAre("1 at 2", "7 at 7", "6 at 7"));
}

TEST_F(ProfileOfAStep, IsMissedWhereThereAreFewerSteps) {
  LogCapture log;

  model(Strategy()).fit(data_, {.callbacks = {board(5)}, .verbose = 0});

  EXPECT_TRUE(log.contains("there is no profile of step 5, since there were 4 steps"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_THROW(board(0), Error);
}

TEST_F(ProfileOfAStep, SaysWhyItCannotBeWritten) {
  std::ofstream(directory_.path() + "/profile") << "no directory";

  EXPECT_THAT(message_of([&] { model(Strategy()).fit(data_, {.callbacks = {board(2)}, .verbose = 0}); }),
              HasSubstr("worker-0.json\" cannot be written: Not a directory"));
}

TEST_F(ProfileOfAStep, IsRefusedWhereWorkersRunTheSteps) {
  const InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  Model on_servers = model(testing_support::strategy_of(cluster, Transport::kLocal));

  EXPECT_THAT(message_of([&] { on_servers.fit(data_, {.callbacks = {board(2)}, .verbose = 0}); }),
              HasSubstr("would profile step 2 (TensorBoard's profile_step), but under ParameterServerStrategy"));
}

}  // namespace
}  // namespace muster::callbacks_profile_test
