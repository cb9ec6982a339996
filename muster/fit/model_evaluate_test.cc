#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster::model_evaluate_test {
namespace {

using ::testing::ElementsAre;

constexpr int kQuiet = 0;

// The loss of an example is its target, whatever the model says.
const auto kTarget = [](const at::Tensor& output, const at::Tensor& target) {
  return output.flatten() * 0 + target.flatten();
};
Model model_of(const Strategy& strategy, int64_t steps_per_execution = 1) {
  return compile(strategy.make<torch::nn::Linear>(1, 1), {.optimizer = Sgd({.learning_rate = 0}),
                                                          .loss = Loss(kTarget),
                                                          .metrics = {MeanAbsoluteError()},
                                                          .steps_per_execution = steps_per_execution});
}

// 0, 1, 2, …
struct Numbers {
  explicit Numbers(int64_t count) : y(torch::arange(count, torch::kFloat)), x(y.unsqueeze(1)) {}
  Dataset data() const { return Dataset::tensors({x, y.unsqueeze(1)}); }
  double mean(int64_t first = 0) const { return y.slice(0, first).to(torch::kDouble).mean().item<double>(); }

  at::Tensor y, x;
};

// ---- As many steps as are asked for
TEST(Evaluate, TakesTheFirstSteps) {
  Model model = model_of(Strategy());
  const Numbers numbers(10);

  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(model.evaluate(numbers.data().batch(2), {.steps = 3}).at("loss"), 2.5);
    EXPECT_EQ(model.evaluate({numbers.x, numbers.x}, {.steps = 3, .batch_size = 2}).at("loss"), 2.5);
  }
  EXPECT_EQ(model.evaluate(numbers.data().batch(2).repeat(), {.steps = 10}).at("loss"), 4.5);
}

TEST(Evaluate, CountsAllOfDataThatHasFewerSteps) {
  Model model = model_of(Strategy(), /*steps_per_execution=*/4);

  EXPECT_EQ(model.evaluate(Numbers(12).data().batch(2), {.steps = 10}).at("loss"), 5.5);
}

TEST(Predict, TakesTheFirstSteps) {
  Model model = model_of(Strategy());
  const at::Tensor x = Numbers(6).x;

  EXPECT_EQ(model.predict(x, {.steps = 3, .batch_size = 2}).sizes(), at::IntArrayRef({6, 1}));
  EXPECT_TRUE(model.predict(x, {.steps = 2, .batch_size = 2}).allclose(model.predict(x).slice(0, 0, 4)));
  EXPECT_EQ(model.predict(Dataset::tensors({x}).batch(2).repeat(), {.steps = 4}).size(0), 8);
}

TEST(Predict, PassesOverTheTargetOfNamedData) {
  Model model = model_of(Strategy());
  const Numbers numbers(6);
  const at::Tensor said = model.predict(numbers.x), weights = torch::ones({6});

  for (const Dataset& data : {numbers.data().named({"x", "y"}),
                              Dataset::tensors({numbers.x, weights, numbers.y}).named({"x", "sample_weight", "y"}),
                              Dataset::tensors({numbers.x, weights}).named({"x", "sample_weight"})}) {
    EXPECT_TRUE(model.predict(data.batch(2)).equal(said));
  }
  EXPECT_NO_THROW(model.fit(numbers.data().named({"x", "y"}).batch(2), {.verbose = kQuiet}));
}

TEST(Predict, PassesOverTargetsAndWeightsOfWhateverIsTrainedOn) {
  Model model = model_of(Strategy());
  const Numbers numbers(6);
  const at::Tensor target = numbers.x, weights = torch::full({6}, 2.0F), mask = torch::ones({6}, torch::kBool);
  const at::Tensor said = model.predict(numbers.x);
  const Dataset by_name = Dataset::tensors({numbers.x, target, weights}).named({"x", "y", "sample_weight"});

  for (const Dataset& data : {Dataset::tensors({numbers.x, target, weights}),
                              Dataset::tensors({numbers.x, target, mask}), by_name, by_name.label("y")}) {
    EXPECT_TRUE(model.predict(data.batch(2)).equal(said));
    EXPECT_NO_THROW(model.evaluate(data.batch(2)));
  }
  EXPECT_TRUE(model.predict({numbers.x, target, weights}).equal(said)) << "of tensors";
}

TEST(Predict, TakesAllColumnsOfDataForAModelThatKnowsThemByName) {
  struct ByName : torch::nn::Module {
    at::Tensor forward(const Features& features) { return row->forward(features["b"]) - features["a"]; }
    torch::nn::Linear row{register_module("row", torch::nn::Linear(1, 1))};
  };
  Model model = compile(std::make_shared<ByName>(), {.loss = Loss(kTarget)});
  const at::Tensor x = Numbers(6).x;

  const at::Tensor said = model.predict(Dataset::tensors({x, x + 1}).named({"b", "a"}).batch(2));
  EXPECT_EQ(said.size(0), 6);
  EXPECT_TRUE(model.predict(Features({"a", "b"}, {x + 1, x})).allclose(said)) << "of tensors with names";
}

TEST(Validation, TakesTheFirstStepsAfterEachEpoch) {
  for (const int64_t steps_per_execution : {1, 2}) {
    Model model = model_of(Strategy(), steps_per_execution);
    const Numbers numbers(10);

    const History history =
        model.fit(numbers.data().batch(2),
                  {.epochs = 3, .validation_data = numbers.data().batch(2), .validation_steps = 3, .verbose = kQuiet});

    EXPECT_THAT(history["val_loss"], ElementsAre(2.5, 2.5, 2.5));
    EXPECT_THAT(history["loss"], ElementsAre(4.5, 4.5, 4.5));
  }
}

TEST(Validation, ReadsWhatIsCachedOnceAndTakesSeveralStepsAtATime) {
  std::atomic<int> begun{0};
  const Dataset numbers = Dataset::generator([&begun] {
    ++begun;
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == 20) return std::nullopt;
      const at::Tensor number = torch::full({1}, static_cast<float>(next++));
      return Element{number, number};
    };
  });
  const Dataset data = numbers.cache().batch(2);
  Model model = model_of(Strategy(), /*steps_per_execution=*/2);
  data.element_spec();
  const int before = begun;

  const History history =
      model.fit(Numbers(4).data().batch(2), {.epochs = 4, .validation_data = data, .verbose = kQuiet});

  EXPECT_LE(begun, before + 2) << "to read it, and to see what an element looks like";
  EXPECT_THAT(history["val_loss"], ElementsAre(9.5, 9.5, 9.5, 9.5));
}

TEST(Validation, SaysBeforeTheTrainingThatItsDataHasNoEnd) {
  Model model = model_of(Strategy());
  bool begun = false;
  const LambdaCallback look({.on_epoch_begin = [&](Training&) { begun = true; }});

  const std::string said = testing_support::message_of([&] {
    model.fit(Numbers(4).data().batch(2),
              {.validation_data = Numbers(4).data().batch(2).repeat(), .callbacks = {look}, .verbose = kQuiet});
  });

  EXPECT_THAT(said, ::testing::HasSubstr("validation_steps is needed"));
  EXPECT_FALSE(begun);
}

// ---- While workers die

// Elements that pass it are counted, and somebody may wait for some of them.
std::atomic<int64_t>& passed_elements() {
  static std::atomic<int64_t> count{0};
  return count;
}
void pass_element() {
  ++passed_elements();
  passed_elements().notify_all();
}
// False: it is not wanted any more.
bool wait_for_elements(int64_t count, const std::stop_token& stop) {
  for (int64_t now = passed_elements(); now < count && !stop.stop_requested(); now = passed_elements()) {
    passed_elements().wait(now);
  }
  return !stop.stop_requested();
}

Dataset counted(const Dataset& data) {
  [[maybe_unused]] static const bool registered = [] {
    register_dataset_map("counted_elements", [](const RegisteredOptions&) {
      return [](Columns element) {
        pass_element();
        return element;
      };
    });
    return true;
  }();
  return data.map_registered("counted_elements");
}

// Kills a worker, and starts it again, each time that so many elements more were read. The other worker stays.
class Killer {
 public:
  Killer(InProcessCluster& cluster, int64_t every) : cluster_(cluster), every_(every) {}
  ~Killer() {
    thread_.request_stop();
    pass_element();  // it may wait for one
  }
  int kills() const { return kills_; }

 private:
  void kill(const std::stop_token& stop) {
    while (wait_for_elements(passed_elements() + every_, stop)) {
      cluster_.stop({"worker", 1});
      cluster_.start({"worker", 1});
      ++kills_;
    }
  }

  InProcessCluster& cluster_;
  const int64_t every_;
  std::atomic<int> kills_{0};
  std::jthread thread_{[this](const std::stop_token& stop) { kill(stop); }};
};

class EvaluateWhileWorkersDie : public ::testing::Test {
 protected:
  InProcessCluster cluster_{{.workers = 2, .ps = 1}};
  ParameterServerStrategy strategy_{cluster_.resolver()};
  Model model_ = model_of(strategy_);
  const Numbers numbers_{400};
  const Dataset data_ = counted(numbers_.data()).batch(2);
};

TEST_F(EvaluateWhileWorkersDie, CountsEachExampleOnceIfOneStaysAway) {
  LogCapture log;
  std::jthread killer([this, soon = passed_elements() + 50](const std::stop_token& stop) {
    if (wait_for_elements(soon, stop)) cluster_.stop({"worker", 1});
  });

  EXPECT_EQ(model_.evaluate(data_).at("loss"), numbers_.mean());
  EXPECT_TRUE(log.contains("begins again"));
}

TEST_F(EvaluateWhileWorkersDie, KeepsWhatItHasSoThatManyLossesDoNotHoldItUpForEver) {
  LogCapture quiet;
  model_.evaluate(data_, {.steps = 1});  // all is traced
  const Killer killer(cluster_, 250);    // it would never see all 400 without a loss, as long as both take part

  const Logs logs = model_.evaluate(data_);

  EXPECT_EQ(logs.at("loss"), numbers_.mean());
  EXPECT_GE(killer.kills(), 1);
}

TEST_F(EvaluateWhileWorkersDie, CountsEachExampleOnceInTheMetricsOfTheValidationWithinFit) {
  LogCapture quiet;
  const at::Tensor said = model_.predict({numbers_.x, numbers_.x});
  const double error = (said - numbers_.x).abs().to(torch::kDouble).mean().item<double>();
  const Killer killer(cluster_, 250);

  const History history =
      model_.fit(Numbers(8).data().batch(2), {.epochs = 2, .validation_data = data_, .verbose = kQuiet});

  EXPECT_THAT(history["val_loss"], ElementsAre(numbers_.mean(), numbers_.mean()));
  for (const double each : history["val_mean_absolute_error"]) EXPECT_NEAR(each, error, 1e-5 * error);
  EXPECT_GE(killer.kills(), 1);
}

// An opened sequence whose elements are counted, whatever it is made of.
class CountedSource : public ElementSource {
 public:
  explicit CountedSource(std::unique_ptr<ElementSource> behind) : behind_(std::move(behind)) {}

  std::optional<Element> next() override {
    pass_element();
    return behind_->next();
  }
  bool begin_again() override { return behind_->begin_again(); }
  void close() override { behind_->close(); }
  void used(int64_t elements) override { behind_->used(elements); }
  void taken_again() override { behind_->taken_again(); }
  void hand_out(const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override {
    behind_->hand_out(given, cancellation, std::move(wanted));
  }
  std::string position_after(int64_t taken) const override { return behind_->position_after(taken); }
  InputTiming timing() const override { return behind_->timing(); }

 private:
  const std::unique_ptr<ElementSource> behind_;
};

LocalWorkerOptions counting_elements() {
  LocalWorkerOptions options;
  options.open_source = [](const std::string& description, Worker& worker) {
    return std::make_unique<CountedSource>(muster::open_source(description, worker));
  };
  return options;
}

class EvaluateOfOtherInputWhileAWorkerDies : public ::testing::Test {
 protected:
  // In an evaluation that a worker dies in, and is there again at once.
  void expect_each_once(const ModelInput& input) {
    LogCapture log;
    Logs logs;
    {
      const std::jthread killer([this, soon = passed_elements() + 25](const std::stop_token& stop) {
        if (!wait_for_elements(soon, stop)) return;
        cluster_.stop({"worker", 1});
        cluster_.start({"worker", 1});
      });
      logs = model_.evaluate(input, {.batch_size = 2});
    }
    EXPECT_EQ(logs.at("loss"), numbers_.mean());
    EXPECT_TRUE(log.contains("begins again"));
  }

  InProcessCluster cluster_{{.workers = 2, .ps = 1, .worker = counting_elements()}};
  ParameterServerStrategy strategy_{cluster_.resolver()};
  Model model_ = model_of(strategy_);
  const Numbers numbers_{2000};
};

TEST_F(EvaluateOfOtherInputWhileAWorkerDies, CountsEachExampleOfTensorsOnce) {
  expect_each_once({numbers_.x, numbers_.y});
}

TEST_F(EvaluateOfOtherInputWhileAWorkerDies, CountsEachExampleOnceOfWhatAFunctionMakesForEachWorker) {
  expect_each_once([this](InputContext input) { return numbers_.data().batch(2).shard(input); });
}

TEST_F(EvaluateOfOtherInputWhileAWorkerDies, CountsEachExampleOnceOfWhatAFunctionHandsOut) {
  expect_each_once([this](InputContext) { return numbers_.data().shard({}, ShardPolicy::kDynamic).batch(2); });
}

TEST_F(EvaluateOfOtherInputWhileAWorkerDies, CountsEachExampleOnceOfWhatCannotBeHandedOut) {
  expect_each_once(numbers_.data().batch(2).take(1000));
}

}  // namespace
}  // namespace muster::model_evaluate_test
