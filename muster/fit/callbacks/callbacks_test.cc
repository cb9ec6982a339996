#include "muster/fit/callbacks/callbacks.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/fit/callbacks/rate_callbacks.h"
#include "muster/fit/model.h"
#include "muster/fit/test_callbacks.h"
#include "muster/fit/test_events.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"

namespace muster::callbacks_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing_support::dies_in;
using testing_support::error_of;
using testing_support::events_below;

class FitCallbacks : public testing_support::CallbacksTest {};

TEST_F(FitCallbacks, ModelCheckpointKeepsTheNewest) {
  Model trained = model();
  const ModelCheckpoint saves({.directory = in("checkpoints"), .keep = 2});
  trained.fit(data_, {.epochs = 4, .callbacks = {saves}, .verbose = 0});

  EXPECT_THAT(CheckpointDirectory(in("checkpoints")).all(), SizeIs(2));
  trained.fit(data_, {.epochs = 1, .callbacks = {saves}, .verbose = 0});
  EXPECT_EQ(CheckpointDirectory(in("checkpoints")).latest()->step, 20) << "it counts on";
}

TEST_F(FitCallbacks, ModelCheckpointSavesOnlyWhatIsBetter) {
  Model trained = model(/*learning_rate=*/0);

  trained.fit(
      data_, {.epochs = 4, .callbacks = {ModelCheckpoint({.directory = in("best"), .monitor = "loss"})}, .verbose = 0});

  EXPECT_THAT(CheckpointDirectory(in("best")).all(), SizeIs(1));
}

TEST_F(FitCallbacks, SayBeforeTheFirstEpochThatADirectoryCannotBeMade) {
  int epochs = 0;
  const LambdaCallback counts({.on_epoch_begin = [&](Training&) { ++epochs; }});
  std::ofstream(in("file")) << "no directory";
  const std::string directory = in("file") + "/checkpoints";
  const auto refused = [&](const Callbacks::Any& callback) {
    return testing_support::message_of([&] { model().fit(data_, {.callbacks = {counts, callback}, .verbose = 0}); });
  };

  EXPECT_THAT(refused(ModelCheckpoint({.directory = directory})),
              HasSubstr("ModelCheckpoint: the directory \"" + directory + "\" cannot be made"));
  EXPECT_THAT(refused(BackupAndRestore({.directory = directory})), HasSubstr("BackupAndRestore: the directory"));
  EXPECT_EQ(epochs, 0);
}

TEST_F(FitCallbacks, TensorBoardSaysBeforeTheFirstEpochThatItCannotWrite) {
  Model trained = model();
  std::ofstream(in("file")) << "no directory";
  int epochs = 0;
  const LambdaCallback count({.on_epoch_begin = [&](Training&) { ++epochs; }});

  const Status status = testing_support::caught(
      [&] { trained.fit(data_, {.callbacks = {TensorBoard({.directory = in("file/logs")}), count}, .verbose = 0}); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), EndsWith("cannot be written: Not a directory"));
  EXPECT_EQ(epochs, 0);
}

TEST_F(FitCallbacks, ModelCheckpointGoesOnWithTheBestOfItsDirectory) {
  const ModelCheckpointOptions best{.directory = in("best"), .keep = 9, .monitor = "loss"};
  Model trained = model(/*learning_rate=*/0);
  trained.fit(data_, {.epochs = 1, .callbacks = {ModelCheckpoint(best)}, .verbose = 0});

  trained.fit(data_, {.epochs = 3, .initial_epoch = 1, .callbacks = {ModelCheckpoint(best)}, .verbose = 0});

  EXPECT_THAT(CheckpointDirectory(in("best")).all(), SizeIs(1));
}

TEST_F(FitCallbacks, SayBeforeTheFirstEpochThatAServerMayNotSave) {
  const InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  const Strategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  Model trained = compile(strategy.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error});
  int epochs = 0;
  const LambdaCallback count({.on_epoch_begin = [&](Training&) { ++epochs; }});
  const auto refused = [&](Callbacks::Any saves) {
    return testing_support::caught([&] { trained.fit(data_, {.callbacks = {saves, count}, .verbose = 0}); });
  };

  for (const Status& status :
       {refused(ModelCheckpoint({.directory = in("checkpoints")})), refused(BackupAndRestore({in("backup")}))}) {
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(status.message(), HasSubstr("--storage"));
  }
  EXPECT_EQ(epochs, 0);
}

TEST(EarlyStopping, NamesAnOptionThatIsOutOfItsRange) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const EarlyStoppingOptions& options) {
    return error_of([&] { const EarlyStopping callback(options); });
  };

  EXPECT_EQ(refused({.min_delta = -0.5}), "EarlyStopping: min_delta is -0.5, expected 0 or more");
  EXPECT_EQ(refused({.min_delta = none}), "EarlyStopping: min_delta is nan, expected 0 or more");
  EXPECT_EQ(refused({.patience = -1}), "EarlyStopping: patience is -1, expected 0 or more");
  EXPECT_EQ(refused({.start_from_epoch = -3}), "EarlyStopping: start_from_epoch is -3, expected 0 or more");
  EXPECT_EQ(refused({.baseline = none}), "EarlyStopping: baseline is nan, expected a number");
}

TEST_F(FitCallbacks, WriteToNoDirectoryWithoutAName) {
  EXPECT_EQ(error_of([] { TensorBoard({.directory = ""}); }), "TensorBoard: no directory");
  EXPECT_EQ(error_of([] { BackupAndRestore({.directory = ""}); }), "BackupAndRestore: no directory");
  EXPECT_EQ(error_of([] { ModelCheckpoint({.directory = ""}); }), "ModelCheckpoint: no directory");
}

TEST_F(FitCallbacks, EarlyStoppingBeginsAnewWithEachFit) {
  Model trained = model(/*learning_rate=*/0);
  const FitOptions options{.epochs = 9, .callbacks = {EarlyStopping({.monitor = "loss", .patience = 2})}, .verbose = 0};

  EXPECT_THAT(trained.fit(data_, options).epochs(), SizeIs(3));
  EXPECT_THAT(trained.fit(data_, options).epochs(), SizeIs(3));
}

TEST_F(FitCallbacks, LambdasMayAddNumbersAndSeeThatAnEpochIsOver) {
  Model trained = model();
  std::vector<std::string> seen;
  const LambdaCallback adds({.add_logs = [](Training& training, Logs& logs) { logs.set("twice", 2 * training.epoch); },
                             .on_epoch_end = [&](Training&, const Logs&) { seen.emplace_back("end"); },
                             .on_epoch_over = [&](Training&) { seen.emplace_back("over"); }});
  const LambdaCallback after({.on_epoch_end = [&](Training&, const Logs&) { seen.emplace_back("end of another"); }});

  const History history = trained.fit(data_, {.epochs = 2, .callbacks = {adds, after}, .verbose = 0});

  EXPECT_THAT(history["twice"], ElementsAre(0, 2));
  EXPECT_THAT(seen, ElementsAre("end", "end of another", "over", "end", "end of another", "over"));
  EXPECT_THROW(LambdaCallback({.add_logs = [](Training&, Logs&) {}, .only_watches = true}), Error);
}

TEST_F(FitCallbacks, CountEpochsFromTheInitialOne) {
  Model trained = model();
  std::vector<int> seen;
  const LambdaCallback look({.on_epoch_begin = [&](Training& training) { seen.push_back(training.epoch); }});

  const History history = trained.fit(
      data_,
      {.epochs = 4, .initial_epoch = 2, .callbacks = {look, TensorBoard({.directory = in("logs")})}, .verbose = 0});

  EXPECT_THAT(history.epochs(), ElementsAre(2, 3));
  EXPECT_THAT(seen, ElementsAre(2, 3));
  EXPECT_EQ(events_below(in("logs/train")).front().step(), 2);
  EXPECT_THAT(trained.fit(data_, {.epochs = 2, .initial_epoch = 2, .verbose = 0}).epochs(), SizeIs(0));
}

TEST_F(FitCallbacks, TensorBoardHasTheRateOfASchedule) {
  Model trained =
      compile(torch::nn::Linear(2, 1),
              {.optimizer = Sgd({.learning_rate = piecewise_constant({6}, {0.5, 0.25})}), .loss = mean_squared_error});

  trained.fit(data_,
              {.epochs = 2, .callbacks = {TensorBoard({.directory = in("logs"), .write_graph = false})}, .verbose = 0});

  std::vector<double> rates;
  for (const proto::Event& event : events_below(in("logs/train"))) {
    for (const auto& value : event.summary().value()) {
      if (value.tag() == "epoch_learning_rate") rates.push_back(value.simple_value());
    }
  }
  EXPECT_THAT(rates, ElementsAre(0.5, 0.25));
}

// A process that takes its steps with others, of which it is not the first.
struct Follower : Strategy {
  Follower() : Strategy(StrategyParts{.across = {.rank = 1}}) {}
};

TEST_F(FitCallbacks, PrintAndWriteInTheChiefOnly) {
  const Follower follower;
  at::Tensor targets = y_.clone();
  targets[8] = std::numeric_limits<double>::quiet_NaN();
  const auto trained = [&] {
    return compile(follower.make<torch::nn::Linear>(2, 1), {.loss = mean_squared_error, .strategy = follower});
  };
  const auto backs_up = [&](const LambdaCallback& also) {
    return FitOptions{.epochs = 3, .callbacks = {BackupAndRestore({in("backup")}), also}, .verbose = 0};
  };
  LogCapture log;
  testing::internal::CaptureStdout();

  trained().fit(Dataset::tensors({x_, targets}).batch(8), {.epochs = 2, .callbacks = {TerminateOnNaN()}});
  trained().fit(data_, {.epochs = 2, .steps_per_epoch = 3});
  trained().fit(data_, {.epochs = 9,
                        .callbacks = {EarlyStopping({.monitor = "loss", .min_delta = 1e9, .patience = 1}),
                                      ReduceLrOnPlateau({.monitor = "loss", .patience = 1, .min_delta = 1e9}),
                                      CsvLogger(in("log.csv")), TensorBoard({.directory = in("logs")})}});
  EXPECT_THROW(trained().fit(data_, backs_up(dies_in(1))), Error);
  std::filesystem::create_directories(in("backup"));
  const History history = trained().fit(data_, backs_up(LambdaCallback({})));

  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  for (const char* word : {"fit", "epoch", "loss"}) EXPECT_FALSE(log.contains(word)) << word;
  EXPECT_FALSE(std::filesystem::exists(in("log.csv")));
  EXPECT_FALSE(std::filesystem::exists(in("logs")));
}

TEST_F(FitCallbacks, TensorBoardHasAFileForEachKindOfData) {
  Model trained = model();

  trained.fit(
      data_,
      {.epochs = 2, .validation_data = data_, .callbacks = {TensorBoard({.directory = in("logs")})}, .verbose = 0});

  const std::vector<proto::Event> train = events_below(in("logs/train"));
  ASSERT_THAT(train, SizeIs(3));
  EXPECT_EQ(train[0].summary().value(0).tag(), "epoch_learning_rate");
  EXPECT_EQ(train[0].summary().value(1).tag(), "epoch_loss");
  EXPECT_THAT(train[1].graph_def(), HasSubstr("aten::")) << "the graph of a step, once";
  EXPECT_EQ(train[2].step(), 1);
  EXPECT_THAT(events_below(in("logs/validation")), SizeIs(2));
}

TEST_F(FitCallbacks, TensorBoardShowsTheVariablesOfSomeEpochs) {
  Model trained = model();
  const TensorBoard board({.directory = in("logs"), .histogram_freq = 2, .write_graph = false});

  trained.fit(data_, {.epochs = 4, .callbacks = {board}, .verbose = 0});

  std::vector<std::string> seen;
  for (const proto::Event& event : events_below(in("logs/train"))) {
    const auto& value = event.summary().value(0);
    if (value.has_tensor()) seen.push_back(str_cat(value.tag(), " of ", event.step()));
  }
  const std::vector<Variable>& variables = trained.variables().all();
  EXPECT_THAT(seen, ElementsAre(str_cat("weights/", variables[0].name(), " of 0"),
                                str_cat("weights/", variables[1].name(), " of 0"),
                                str_cat("weights/", variables[0].name(), " of 2"),
                                str_cat("weights/", variables[1].name(), " of 2")));
  EXPECT_THROW(TensorBoard({.histogram_freq = -1}), Error);
}

// A table on a parameter server of which a row has its memory when it is trained.
class FitWithRowsOnDemand : public testing_support::CallbacksTest {
 protected:
  void fit(const Callbacks& callbacks) {
    model_.fit({ids_, torch::ones({2, 1})}, {.callbacks = callbacks, .verbose = 0});
  }

  const InProcessCluster cluster_{
      {.workers = 1, .ps = 1, .transport = Transport::kLocal, .worker = {.storage = {directory_.path()}}}};
  const Strategy strategy_ = testing_support::strategy_of(cluster_, Transport::kLocal);
  const VariableScope scope_ = strategy_.scope();
  const at::Tensor ids_ = torch::tensor({1, 33});
  Model model_ =
      compile(strategy_.make<torch::nn::Sequential>(
                  nn::Embedding({.rows = 40, .dim = 2, .name = "table", .on_demand = true}), torch::nn::Linear(2, 1)),
              {.loss = mean_squared_error});
};

TEST_F(FitWithRowsOnDemand, TensorBoardMakesNoOthers) {
  LogCapture log;

  fit({TensorBoard({.directory = in("logs"), .histogram_freq = 1, .write_graph = false})});

  const std::string saved = Checkpoints(strategy_, {.directory = in("checkpoints")}).save(1);
  EXPECT_THAT(CheckpointReader(saved).names(), Contains("table#rule@0")) << "nobody has filled the table";
  EXPECT_TRUE(log.contains("there is no histogram of \"table\", whose rows are made on demand"));
  std::vector<std::string> seen;
  for (const proto::Event& event : events_below(in("logs/train"))) {
    for (const auto& value : event.summary().value()) seen.push_back(value.tag());
  }
  EXPECT_THAT(seen, Contains(StartsWith("weights/"))) << "of the others";
  EXPECT_THAT(seen, Not(Contains("weights/table")));
}

TEST_F(FitWithRowsOnDemand, EarlyStoppingSaysBeforeTheFirstEpochThatItKeepsNone) {
  bool begun = false;
  const LambdaCallback watch({.on_epoch_begin = [&](Training&) { begun = true; }});
  const EarlyStopping stop({.monitor = "loss", .restore_best_weights = true});

  const std::string message = testing_support::message_of([&] { fit({watch, stop}); });

  EXPECT_THAT(message, HasSubstr("restore_best_weights would make all rows of \"table\", which are made on demand"));
  EXPECT_THAT(message, HasSubstr("expected ModelCheckpoint with .monitor = \"loss\""));
  EXPECT_FALSE(begun);
  EXPECT_NO_THROW(fit({EarlyStopping({.monitor = "loss"})}));
}

TEST_F(FitWithRowsOnDemand, SwapAveragesMakesNoOthersWithoutValidation) {
  Model averaged = compile(
      strategy_.make<torch::nn::Sequential>(
          nn::Embedding({.rows = 40, .dim = 2, .name = "averaged", .on_demand = true}), torch::nn::Linear(2, 1)),
      {.optimizer = Sgd({.learning_rate = 0.1, .all = {.average = 0.9}}), .loss = mean_squared_error});
  LogCapture log;

  averaged.fit({ids_, torch::ones({2, 1})}, {.callbacks = {SwapAverages()}, .verbose = 0});

  const std::string saved = Checkpoints(strategy_, {.directory = in("checkpoints")}).save(1);
  EXPECT_THAT(CheckpointReader(saved).names(), Contains("averaged#rule@0")) << "nobody has filled the table";
  EXPECT_TRUE(log.contains("would make all rows of \"averaged\", which are made on demand"));
}

TEST_F(FitCallbacks, TensorBoardHasASessionForHyperparameters) {
  Model trained = model();
  const TensorBoard board({.directory = in("logs"), .hparams = {{"learning_rate", 0.1}}});

  trained.fit(data_, {.callbacks = {board}, .verbose = 0});

  const std::vector<proto::Event> session = events_below(in("logs"));
  ASSERT_THAT(session, SizeIs(2));
  EXPECT_EQ(session[0].summary().value(0).tag(), "_hparams_/session_start_info");
  EXPECT_EQ(session[1].summary().value(0).tag(), "_hparams_/session_end_info");
}

TEST_F(FitCallbacks, TerminateOnNaNEndsWhatHasExploded) {
  Model trained =
      compile(torch::nn::Linear(2, 1), {.optimizer = Sgd({.learning_rate = 1e30}), .loss = mean_squared_error});
  LogCapture log;

  const History history = trained.fit(data_, {.epochs = 50, .callbacks = {TerminateOnNaN()}, .verbose = 0});

  EXPECT_LT(history.epochs().size(), 50U);
  EXPECT_TRUE(log.contains("so it ends"));
}

TEST_F(FitCallbacks, TerminateOnNaNEndsWithTheStep) {
  at::Tensor targets = y_.clone();
  targets[8] = std::numeric_limits<double>::quiet_NaN();  // of the second batch
  int64_t steps = 0;
  const LambdaCallback look({.on_epoch_end = [&](Training& training, const Logs&) { steps = training.steps; }});
  Model trained = model();

  const History history = trained.fit(Dataset::tensors({x_, targets}).batch(8),
                                      {.epochs = 5, .callbacks = {TerminateOnNaN(), look}, .verbose = 0});

  EXPECT_EQ(steps, 2);
  EXPECT_THAT(history.epochs(), ElementsAre(0));
}

TEST_F(FitCallbacks, SeeEachExecution) {
  std::vector<int64_t> steps;
  Model trained = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error, .steps_per_execution = 3});

  trained.fit(data_.repeat(),
              {.steps_per_epoch = 7,
               .callbacks = {LambdaCallback(
                   {.on_steps = [&](Training& training, const Logs&) { steps.push_back(training.steps); }})},
               .verbose = 0});

  EXPECT_THAT(steps, ElementsAre(3, 6, 7));
}

TEST_F(FitCallbacks, SeeProgramsOfSeveralStepsInTheFirstEpochOfDataWhoseDescriptionSaysItsLength) {
  for (const Dataset& data : {data_.repeat(2).take(7), data_.cache().repeat(2).take(7)}) {
    std::vector<int64_t> steps;
    Model trained = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error, .steps_per_execution = 3});

    trained.fit(data, {.epochs = 2,
                       .callbacks = {LambdaCallback(
                           {.on_steps = [&](Training& training, const Logs&) { steps.push_back(training.steps); }})},
                       .verbose = 0});

    EXPECT_THAT(steps, ElementsAre(3, 6, 7, 10, 13, 14));
  }
}

TEST_F(FitCallbacks, SayWhichNumbersThereAre) {
  Model trained = model();
  try {
    trained.fit(data_, {.callbacks = {EarlyStopping()}, .verbose = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("asks for \"val_loss\", but an epoch has loss; validation_data gives it"));
  }
}

TEST_F(FitCallbacks, EarlyStoppingBringsTheBestWeightsBack) {
  Model trained = model();
  const at::Tensor x = torch::ones({8, 2});
  std::vector<double> weights;
  const LambdaCallback look(
      {.on_epoch_end = [&](Training& training, const Logs&) { weights.push_back(weight_of(training.model)); }});
  // A rising number is worse: the first epoch that counts is the best.
  EarlyStopping stop({.monitor = "score", .patience = 2, .start_from_epoch = 1, .restore_best_weights = true});
  Training training{.model = trained, .epochs = 10};
  stop.on_train_begin(training);
  for (; !training.stop; ++training.epoch) {
    trained.fit({x, x.sum(1, true)}, {.callbacks = {look}, .verbose = 0});
    stop.on_epoch_end(training, {{"score", training.epoch}});
  }
  stop.on_train_end(training, {});

  EXPECT_THAT(weights, SizeIs(4));
  EXPECT_EQ(weight_of(trained), weights[1]);
}

TEST_F(FitCallbacks, EarlyStoppingSaysThatWeightsAreBackOnlyIfTheyAre) {
  // A rising number is worse: the first epoch is the best.
  const LambdaCallback score({.add_logs = [](Training& training, Logs& logs) { logs.set("score", training.epoch); }});
  const auto says_so = [&](int epochs, const Callbacks& more) {
    Callbacks callbacks{score, EarlyStopping({.monitor = "score", .patience = 9, .restore_best_weights = true})};
    for (const Callbacks::Any& each : more) callbacks.add(each);
    const LogCapture log;
    model().fit(data_, {.epochs = epochs, .callbacks = callbacks, .verbose = 0});
    return log.contains("are back");
  };
  const LambdaCallback preempts(
      {.on_epoch_over = [](Training& training) { training.preempted = training.stop = training.epoch == 1; }});

  EXPECT_TRUE(says_so(2, {}));
  EXPECT_FALSE(says_so(1, {})) << "the last epoch was the best";
  EXPECT_FALSE(says_so(3, {preempts})) << "the next job goes on from its backup";
}

TEST_F(FitCallbacks, EarlyStoppingSaysWhoKeepsTheBestOfALostJob) {
  EarlyStopping lost({.monitor = "score", .restore_best_weights = true});
  Model trained = model();
  Training training{.model = trained, .epochs = 2};
  lost.on_epoch_end(training, {{"score", 1}});
  EarlyStopping next({.monitor = "score", .restore_best_weights = true});
  const LogCapture log;

  next.remember(lost.memory());

  EXPECT_TRUE(log.contains("A ModelCheckpoint with .monitor = \"score\" keeps the best of all"));
}

TEST_F(FitCallbacks, NameTheNumberThatIsProbablyMeant) {
  Model trained = model();
  auto said = [&](Callbacks callbacks, std::optional<ModelInput> validation_data = {}) -> std::string {
    try {
      trained.fit(data_, {.validation_data = validation_data, .callbacks = callbacks, .verbose = 0});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };

  EXPECT_THAT(said({EarlyStopping({.monitor = "val_los"})}, data_),
              EndsWith("EarlyStopping asks for \"val_los\", but an epoch has loss, val_loss; did you mean "
                       "\"val_loss\"?"));
  EXPECT_THAT(said({EarlyStopping({.monitor = "val_lo"})}, data_), EndsWith("did you mean \"val_loss\"?"))
      << "it begins so";
  EXPECT_THAT(said({EarlyStopping({.monitor = "val_los"})}),
              EndsWith("has loss; did you mean \"val_loss\", which validation_data gives?"));
  EXPECT_THAT(said({EarlyStopping()}), EndsWith("\"val_loss\", but an epoch has loss; validation_data gives it"));
  EXPECT_THAT(said({ModelCheckpoint({.directory = in("monitored"), .monitor = "lost"})}),
              HasSubstr("ModelCheckpoint asks for \"lost\""));
  EXPECT_THAT(said({ReduceLrOnPlateau({.monitor = "f1"})}, data_),
              EndsWith("ReduceLrOnPlateau asks for \"f1\", but an epoch has learning_rate, loss, val_loss"));
  EXPECT_THROW(trained.fit(data_, {.verbose = 0})["los"], Error);
}

TEST_F(FitCallbacks, AskForNumbersThatThereWillNotBeBeforeTheFirstStep) {
  Model trained = model();
  const Callbacks::Any asking[] = {EarlyStopping({.monitor = "val_los"}), ReduceLrOnPlateau({.monitor = "val_los"}),
                                   ModelCheckpoint({.directory = in("asked"), .monitor = "val_los"})};

  for (const Callbacks::Any& callback : asking) {
    bool begun = false;
    const LambdaCallback watch({.on_epoch_begin = [&](Training&) { begun = true; }});
    try {
      trained.fit(data_, {.validation_data = data_, .callbacks = {watch, callback}, .verbose = 0});
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("asks for \"val_los\""));
      EXPECT_THAT(error.what(), EndsWith("did you mean \"val_loss\"?"));
    }
    EXPECT_FALSE(begun);
  }
}

// With a number of its own, whose name nobody knows before.
class Adding : public Callback {
 public:
  void add_logs(Training&, Logs& logs) override { logs.set("own", 1); }
};

TEST_F(FitCallbacks, MayAskForWhatAnotherOneAdds) {
  Model trained = model();
  const Callbacks callbacks{EarlyStopping({.monitor = "own"}), std::make_shared<Adding>()};

  EXPECT_NO_THROW(trained.fit(data_, {.callbacks = {EarlyStopping({.monitor = "own"}), Adding()}, .verbose = 0}));
  EXPECT_NO_THROW(trained.fit(data_, {.callbacks = callbacks, .verbose = 0}));
}

TEST_F(FitCallbacks, NumbersThatAreNoneHaveNoSign) {
  Logs logs;
  logs.set("loss", -std::numeric_limits<double>::quiet_NaN());

  EXPECT_FALSE(std::signbit(logs["loss"]));
}

}  // namespace
}  // namespace muster::callbacks_test
