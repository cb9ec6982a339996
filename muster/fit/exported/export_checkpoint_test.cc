#include "muster/fit/exported/export_checkpoint.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/exported/export_model.h"
#include "muster/fit/exported/loaded_model.h"
#include "muster/fit/model.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/trace/rows.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"
#include "muster/train/module_weights.h"
#include "muster/train/optimizers.h"

namespace muster::export_checkpoint_test {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class ExportCheckpoint : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  const testing_support::ScopedDirectory folder_;
  const at::Tensor x_ = torch::randn({8, 3}), y_ = torch::randn({8, 2});
};

TEST_F(ExportCheckpoint, MakesAModelOfTheNewestCheckpointThatHasTheProgram) {
  Model model = compile(torch::nn::Linear(3, 2), {.loss = mean_squared_error});
  const ModelCheckpoint checkpoints({.directory = path("checkpoints"), .example_inputs = {x_}});
  model.fit({x_, y_}, {.epochs = 2, .callbacks = {checkpoints}, .verbose = 0});

  export_checkpoint({.weights = path("checkpoints"), .out = path("model")});

  EXPECT_TRUE(
      torch::allclose(LoadedModel::load(path("model"))(x_), model.predict(Dataset::from_tensors({x_})), 1e-5, 1e-6));
}

TEST_F(ExportCheckpoint, TakesTheAveragesOfTheWeightsIfItIsToldTo) {
  Model model = compile(torch::nn::Linear(3, 2), {.optimizer = Sgd({.learning_rate = 0.1, .all = {.average = 0.5}}),
                                                  .loss = mean_squared_error});
  const ModelCheckpoint checkpoints({.directory = path("checkpoints"), .example_inputs = {x_}});
  model.fit({x_, y_}, {.epochs = 3, .callbacks = {checkpoints}, .verbose = 0});
  const at::Tensor of_values = model.predict(Dataset::from_tensors({x_}));

  export_checkpoint({.weights = path("checkpoints"), .out = path("values")});
  export_checkpoint({.weights = path("checkpoints"), .out = path("averages"), .averages = true});

  EXPECT_TRUE(torch::allclose(LoadedModel::load(path("values"))(x_), of_values, 1e-5, 1e-6));
  model.optimizer().take_averages();
  const at::Tensor of_averages = model.predict(Dataset::from_tensors({x_}));
  EXPECT_FALSE(torch::allclose(of_averages, of_values, 1e-3, 1e-3));
  EXPECT_TRUE(torch::allclose(LoadedModel::load(path("averages"))(x_), of_averages, 1e-5, 1e-6));
}

TEST_F(ExportCheckpoint, SaysThatThereAreNoAverages) {
  torch::nn::Linear net(3, 2);
  Model model = compile(net, {.loss = mean_squared_error});
  const std::string checkpoint = Checkpoints(model.strategy(), {.directory = path("checkpoints")}).save(7);
  save_safetensors(net, path("weights"));

  EXPECT_THAT(message_of([&] { export_checkpoint({.weights = checkpoint, .out = path("out"), .averages = true}); }),
              HasSubstr("has no averages; UpdateOptions::average makes an optimizer keep some"));
  EXPECT_THAT(
      message_of([&] { export_checkpoint({.weights = path("weights"), .out = path("out"), .averages = true}); }),
      HasSubstr("has no averages beside its weights; expected a checkpoint"));
}

TEST_F(ExportCheckpoint, MakesAModelThatTakesItsInputsByName) {
  struct ByNameImpl : torch::nn::Module {
    at::Tensor forward(const Features& given) { return net->forward(torch::cat({given["a"], given["b"]}, 1)); }
    torch::nn::Linear net{register_module("net", torch::nn::Linear(4, 2))};
  };
  TORCH_MODULE(ByName);
  Model model = compile(ByName(), {.loss = mean_squared_error});
  const at::Tensor a = torch::randn({8, 3}), b = torch::randn({8, 1});
  const ModelCheckpoint checkpoints(
      {.directory = path("checkpoints"), .example_inputs = {a, b}, .input_names = {"a", "b"}});
  model.fit({Features({"a", "b"}, {a, b}), Features({"y"}, {y_})}, {.callbacks = {checkpoints}, .verbose = 0});

  export_checkpoint({.weights = path("checkpoints"), .out = path("model")});

  const LoadedModel loaded = LoadedModel::load(path("model"));
  EXPECT_TRUE(torch::allclose(loaded.run({a, b})[0], model.predict(Dataset::from_tensors({a, b}).named({"a", "b"})),
                              1e-5, 1e-6));
}

TEST_F(ExportCheckpoint, GivesAnExportedModelTheWeightsOfALaterCheckpointOrFile) {
  torch::nn::Linear net(3, 2);
  Model model = compile(net, {.loss = mean_squared_error});
  export_model(model, path("first"), {x_});
  model.fit({x_, y_}, {.epochs = 2, .verbose = 0});
  const std::string checkpoint = Checkpoints(model.strategy(), {.directory = path("checkpoints")}).save(7);
  save_safetensors(net, path("weights"));

  for (const std::string& weights : {checkpoint, path("checkpoints"), path("weights")}) {
    export_checkpoint({.weights = weights, .out = path("second"), .model = path("first")});

    const at::Tensor expected = model.predict(Dataset::from_tensors({x_}));
    EXPECT_TRUE(torch::allclose(LoadedModel::load(path("second"))(x_), expected, 1e-5, 1e-6)) << weights;
    EXPECT_FALSE(torch::allclose(LoadedModel::load(path("first"))(x_), expected, 1e-5, 1e-6));
  }
}

TEST_F(ExportCheckpoint, FindsTheRowsOfVariablesThatAreKeptInParts) {
  const InProcessCluster cluster({.workers = 1, .ps = 2, .worker = {.storage = {folder_.path()}}});
  const ParameterServerStrategy strategy =
      testing_support::strategy_of(cluster, Transport::kLocal, {.partitioner = fixed_size_partitioner(2)});
  Variable table = strategy.make<Variable>(torch::randn({7, 2}), VariableOptions{.name = "table"});
  const at::Tensor ids = torch::tensor({0, 3, 6, 4});
  auto look_up = [&](const at::Tensor& rows) { return table.value().index_select(0, rows); };
  export_model(look_up, path("first"), {ids});
  const at::Tensor later = torch::randn({7, 2});
  table.assign(later);
  Checkpoints(strategy, {.directory = path("checkpoints")}).save(1);

  export_checkpoint({.weights = path("checkpoints"), .out = path("second"), .model = path("first")});

  EXPECT_TRUE(torch::equal(LoadedModel::load(path("second"))(ids), later.index_select(0, ids)));
}

TEST_F(ExportCheckpoint, MakesRowsOfATableOnDemandThatNobodyHasWritten) {
  const InProcessCluster cluster({.workers = 1, .ps = 2, .worker = {.storage = {folder_.path()}}});
  const at::Tensor ids = torch::arange(40);
  for (const int parts : {0, 1, 2}) {
    const Strategy strategy =
        parts == 0 ? Strategy()
                   : Strategy(testing_support::strategy_of(
                         cluster, Transport::kLocal, {.partitioner = FixedShardsPartitioner{.num_shards = parts}}));
    const auto scope = strategy.scope();
    auto net = strategy.make<torch::nn::Sequential>(
        nn::Embedding({.rows = 40, .dim = 2, .name = "table", .on_demand = true}), torch::nn::Linear(2, 1));
    Model model = compile(net, {.optimizer = Sgd({.learning_rate = 1}), .loss = mean_squared_error});
    const std::string directory = path("checkpoints" + std::to_string(parts));
    const ModelCheckpoint saved({.directory = directory, .example_inputs = {torch::arange(2)}});
    model.fit({torch::tensor({1, 33}), torch::ones({2, 1})}, {.callbacks = {saved}, .verbose = 0});

    export_checkpoint({.weights = directory, .out = path("model")});

    EXPECT_THAT(CheckpointReader(CheckpointDirectory(directory).latest()->path).names(), Contains("table#rule@0"))
        << "nobody has filled the table";
    EXPECT_TRUE(
        torch::allclose(LoadedModel::load(path("model"))(ids), model.predict(Dataset::from_tensors({ids})), 1e-5, 1e-6))
        << parts;
  }
}

TEST_F(ExportCheckpoint, SaysWhichTableOnDemandDoesNotFit) {
  torch::nn::Sequential net(nn::Embedding({.rows = 40, .dim = 2, .name = "first", .on_demand = true}));
  Model model = compile(net, {.loss = mean_squared_error});
  export_model(net, path("model"), {torch::arange(2)});
  {
    const Variable other(InitialValue::normal({50, 2}, 0, 1).on_demand(), {.name = "other"});
    Checkpoints(Strategy(), {.directory = path("checkpoints"), .objects = {{"first", other}}}).save(1);
  }

  EXPECT_THAT(message_of([&] {
                export_checkpoint({.weights = path("checkpoints"), .out = path("out"), .model = path("model")});
              }),
              AllOf(HasSubstr("variable \"first\" is float32[40, 2], but checkpoint "), HasSubstr("float32[50, 2]")));
}

TEST_F(ExportCheckpoint, TakesADifferenceWithAllThatItIsOnTopOf) {
  const Variable table(torch::zeros({1000, 4}), {.name = "table"});
  const at::Tensor ids = torch::arange(1000);
  export_model([&](const at::Tensor& rows) { return lookup(table, rows); }, path("first"), {ids});
  Checkpoints checkpoints(Strategy(), {.directory = path("checkpoints"),
                                       .incremental = IncrementalOptions{.least_bytes = 1},
                                       .objects = {{"table", table}}});
  auto write = function([&](at::Tensor at) { scatter(table, Scatter::kAdd, at, torch::ones({1, 4})); });
  for (int64_t step = 1; step <= 3; ++step) {
    write(torch::tensor({step}));
    checkpoints.save(step);
  }

  EXPECT_THAT(CheckpointReader(path("checkpoints/ckpt-3")).names(), Contains("table#rows@0+2"));
  for (int64_t step = 1; step <= 3; ++step) {
    export_checkpoint(
        {.weights = path("checkpoints/ckpt-" + std::to_string(step)), .out = path("second"), .model = path("first")});
    EXPECT_EQ(LoadedModel::load(path("second"))(ids).sum().item<int64_t>(), 4 * step);
  }
}

TEST_F(ExportCheckpoint, SaysWhatIsMissingOrDoesNotFit) {
  torch::nn::Linear net(3, 2), wide(3, 4);
  Model model = compile(net, {.loss = mean_squared_error});
  export_model(model, path("first"), {x_});
  save_safetensors(wide, path("wide"));
  const std::string checkpoint = Checkpoints(model.strategy(), {.directory = path("checkpoints")}).save(1);
  auto message = [&](const std::string& weights, const std::string& program) {
    return message_of([&] { export_checkpoint({.weights = weights, .out = path("out"), .model = program}); });
  };

  EXPECT_THAT(message(path("wide"), path("first")),
              AllOf(HasSubstr(path("wide")), HasSubstr("\"weight\" is float32[4, 3], expected float32[2, 3]"),
                    HasSubstr("\"bias\" is float32[4]")));
  EXPECT_THAT(message(checkpoint, ""), AllOf(HasSubstr(checkpoint), HasSubstr("has no program")));
  EXPECT_THAT(message(checkpoint, path("wide")), HasSubstr("has no program: expected what export_model writes"));
  EXPECT_THAT(message(path("none"), path("first")), HasSubstr("there is no such checkpoint or file"));
  EXPECT_THAT(message(checkpoint, path("none")), HasSubstr(path("none")));
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT(message(path("empty"), path("first")), HasSubstr("is no checkpoint, and none is in it"));
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

}  // namespace
}  // namespace muster::export_checkpoint_test
