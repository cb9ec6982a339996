#include "muster/fit/exported/export_model.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "muster/base/log.h"
#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/exported/export_checkpoint.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/fit/exported/loaded_model.h"
#include "muster/fit/model.h"
#include "muster/train/embedding.h"
#include "muster/train/module_weights.h"
#include "muster/train/weights_file.h"

namespace muster::export_model_test {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using testing_support::ScopedDirectory;

class ExportModel : public ::testing::Test {
 protected:
  // That what is loaded gives for batches of several sizes what `forward` gives.
  template <class Forward>
  void expect_same_for_all_sizes(const Forward& forward, at::IntArrayRef sizes_of_example) {
    const LoadedModel model = LoadedModel::load(file_);
    for (const int64_t size : {1, 2, 3, 4, 7, 64}) {
      std::vector<int64_t> sizes{size};
      sizes.insert(sizes.end(), sizes_of_example.begin(), sizes_of_example.end());
      const at::Tensor x = torch::randn(sizes);
      EXPECT_TRUE(torch::allclose(model(x), forward(x), 1e-4, 1e-5)) << size;
    }
  }

  const ScopedDirectory folder_;
  const std::string file_ = folder_.path() + "/model.safetensors";
  torch::NoGradGuard no_gradients_;
};

TEST_F(ExportModel, WritesAModuleThatTakesBatchesOfAnySize) {
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                            torch::nn::Dropout(0.5), torch::nn::Linear(8, 3));
  net->forward(torch::randn({32, 6}));

  const ExportReport report = export_model(net, file_, {torch::randn({16, 6})}, {.name = "digits"});

  EXPECT_TRUE(report.any_batch) << report.why_not_any;
  EXPECT_TRUE(net->is_training());
  net->eval();
  expect_same_for_all_sizes([&](const at::Tensor& x) { return net->forward(x); }, {6});
  EXPECT_EQ(LoadedModel::load(file_).signature().to_string(),
            "model \"digits\"\n  takes input: float32[batch, 6]\n  gives output: float32[batch, 3]\n"
            "  batch sizes: any\n");
}

TEST_F(ExportModel, PutsTheModulesNamesIntoTheFileSoThatItIsAStateDict) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1)),
      other(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  export_model(net, file_, {torch::randn({4, 2})});

  load_safetensors(other, file_);

  EXPECT_THAT(SafetensorsFile(file_).names(), UnorderedElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
  EXPECT_TRUE(torch::equal(net->forward(torch::ones({1, 2})), other->forward(torch::ones({1, 2}))));
}

TEST_F(ExportModel, WritesNetsOfPicturesThatFlattenByTheSizeOfTheBatch) {
  struct Pictures : torch::nn::Module {
    Pictures() {
      register_module("conv", conv);
      register_module("head", head);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = torch::max_pool2d(conv->forward(x).relu(), 2);
      return head->forward(y.view({x.size(0), -1})) + torch::zeros({x.size(0), 1});
    }
    torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 3)};
    torch::nn::Linear head{4 * 3 * 3, 5};
  };
  auto net = std::make_shared<Pictures>();

  const ExportReport report = export_model(net, file_, {torch::randn({2, 1, 8, 8})});

  EXPECT_TRUE(report.any_batch) << report.why_not_any;
  expect_same_for_all_sizes([&](const at::Tensor& x) { return net->forward(x); }, {1, 8, 8});
}

TEST_F(ExportModel, WritesAttention) {
  torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
  layer->eval();
  auto forward = [&](const at::Tensor& x) { return layer->forward(x.transpose(0, 1)).mean(0); };
  const auto variables = adopt(layer);

  const ExportReport report = export_model(forward, file_, {torch::randn({4, 5, 8})});

  EXPECT_TRUE(report.any_batch) << report.why_not_any;
  expect_same_for_all_sizes(forward, {5, 8});
}

TEST_F(ExportModel, WritesFunctionsWithSeveralInputsAndOutputs) {
  const Variable scale(torch::tensor({2.F, 3.F}), {.name = "scale"});
  auto both =
      function([&](at::Tensor x, at::Tensor shift) { return std::tuple(x * scale + shift, (x * scale).sum(1)); });

  export_model(both, file_, {torch::ones({4, 2}), torch::ones({2})},
               {.inputs = {"x", "shift"}, .outputs = {"moved", "sums"}});
  const LoadedModel model = LoadedModel::load(file_);
  const auto outputs = model.run_named({{"x", torch::ones({3, 2})}, {"shift", torch::tensor({10.F, 20.F})}});

  EXPECT_TRUE(torch::equal(outputs.at("moved"), torch::tensor({12.F, 23.F}).expand({3, 2})));
  EXPECT_TRUE(torch::equal(outputs.at("sums"), torch::full({3}, 5.F)));
  EXPECT_THAT(message_of([&] { model(torch::ones({3, 2}), torch::ones({2})); }), HasSubstr("has 2 outputs"));
}

TEST_F(ExportModel, IsForTheSizesThatWereAskedFor) {
  torch::nn::Linear net(3, 2);

  const ExportReport report = export_model(net, file_, {torch::randn({4, 3})}, {.batch_sizes = {1, 8}});
  const LoadedModel model = LoadedModel::load(file_);

  EXPECT_THAT(report.batch_sizes, ElementsAre(1, 8));
  EXPECT_EQ(model(torch::randn({8, 3})).size(0), 8);
  EXPECT_THAT(message_of([&] { model(torch::randn({4, 3})); }),
              HasSubstr("a batch of 4 examples, expected 1 or 8: it was exported for batches of such sizes alone"));
}

TEST_F(ExportModel, SaysWhyItIsForOneSizeIfAForwardDoesOtherThingsForOthers) {
  auto forward = [](const at::Tensor& x) { return x.size(0) < 4 ? x + 1 : x - 1; };
  LogCapture log;

  const ExportReport report = export_model(forward, file_, {torch::zeros({6, 2})});

  EXPECT_FALSE(report.any_batch);
  EXPECT_THAT(report.why_not_any, HasSubstr("batches of 5 and of 2 differs in more than sizes"));
  EXPECT_TRUE(log.contains("takes batches of 6 examples alone"));
  EXPECT_TRUE(torch::equal(LoadedModel::load(file_)(torch::zeros({6, 2})), torch::full({6, 2}, -1.F)));
}

TEST_F(ExportModel, HasAProgramOfItsOwnForSingleExamplesIfTheyAreTreatedInAnotherWay) {
  auto forward = [](const at::Tensor& x) { return x.size(0) == 1 ? x + 1 : x - 1; };

  const ExportReport report = export_model(forward, file_, {torch::zeros({6, 2})});
  const LoadedModel model = LoadedModel::load(file_);

  EXPECT_TRUE(report.any_batch);
  EXPECT_TRUE(torch::equal(model(torch::zeros({1, 2})), torch::ones({1, 2})));
  EXPECT_TRUE(torch::equal(model(torch::zeros({9, 2})), torch::full({9, 2}, -1.F)));
}

TEST_F(ExportModel, KeepsLargeConstantsBesideTheWeights) {
  const at::Tensor table = torch::randn({100, 10});

  const ExportReport report =
      export_model([&](const at::Tensor& x) { return x.mm(table) + 1; }, file_, {torch::randn({3, 100})});

  EXPECT_EQ(report.weights, 1U);
  EXPECT_TRUE(torch::equal(read_weight(SafetensorsFile(file_), "constant_0"), table));
  expect_same_for_all_sizes([&](const at::Tensor& x) { return x.mm(table) + 1; }, {100});
}

TEST_F(ExportModel, RefusesAForwardThatChangesItsVariables) {
  const Variable calls(torch::zeros({}), {.name = "calls"});
  auto forward = [&](const at::Tensor& x) {
    Variable(calls).assign_add(torch::ones({}));
    return x + calls;
  };

  EXPECT_THAT(message_of([&] { export_model(forward, file_, {torch::ones({2})}); }),
              HasSubstr("it writes to variable \"calls\", as layers do in training mode"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(ExportModel, SaysWhatIsWrongWithTheExamplesAndTheNames) {
  torch::nn::Linear net(3, 2);

  EXPECT_THAT(message_of([&] { export_model(net, file_, {torch::randn({4, 2})}); }),
              AllOf(HasSubstr("model \"model\", with batches of 4"), HasSubstr("mat1 and mat2")));
  EXPECT_THAT(message_of([&] { export_model(net, file_, {at::Tensor()}); }), HasSubstr("example 0 is not defined"));
  EXPECT_THAT(message_of([&] { export_model(net, file_, {torch::randn({0, 3})}); }), HasSubstr("a batch of 0"));
  EXPECT_THAT(message_of([&] { export_model(net, file_, {torch::randn({4, 3})}, {.inputs = {"a", "b"}}); }),
              HasSubstr("names for 2 inputs, but there are 1"));
  struct ByNameImpl : torch::nn::Module {
    at::Tensor forward(const Features& row) { return row["x"] + shift; }
    at::Tensor shift = register_parameter("shift", torch::ones({1}));
  };
  TORCH_MODULE(ByName);
  const Model by_name = compile(ByName(), {.loss = mean_squared_error});
  EXPECT_THAT(message_of([&] { export_model(by_name, file_, {torch::ones({4})}); }),
              HasSubstr("no column \"x\"; their columns have no names (Dataset::named, and for models "
                        "ExportOptions::inputs or the input_names of"));
}

TEST_F(ExportModel, WritesATableThatIsLookedUpAsOneTensorInHoweverManyPartsItIs) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  const at::Tensor ids = torch::tensor({{0, 3}, {6, 4}, {6, 0}, {2, 1}});
  for (const int parts : {0, 1, 2, 3}) {
    const Strategy strategy =
        parts == 0 ? Strategy()
                   : Strategy(testing_support::strategy_of(
                         cluster, Transport::kLocal, {.partitioner = FixedShardsPartitioner{.num_shards = parts}}));
    const auto scope = strategy.scope();
    auto net = strategy.make<torch::nn::Sequential>(nn::Embedding({.rows = 7, .dim = 2}), torch::nn::Flatten(),
                                                    torch::nn::Linear(4, 3));
    Model model = compile(net, {.loss = mean_squared_error});

    const ExportReport report = export_model(model, file_, {ids});
    save_safetensors(net, folder_.path() + "/weights");
    export_checkpoint({.weights = folder_.path() + "/weights", .out = folder_.path() + "/again", .model = file_});

    EXPECT_TRUE(report.any_batch) << report.why_not_any;
    EXPECT_THAT(SafetensorsFile(file_).names(), UnorderedElementsAre("0.weight", "2.weight", "2.bias")) << parts;
    const at::Tensor expected = model.predict(Dataset::from_tensors({ids}));
    for (const std::string& file : {file_, folder_.path() + "/again"}) {
      EXPECT_TRUE(torch::allclose(LoadedModel::load(file)(ids), expected, 1e-5, 1e-6)) << parts;
    }
  }
}

TEST_F(ExportModel, LooksRowsUpAndNamesNoDevice) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  const Strategy strategy = testing_support::strategy_of(cluster, Transport::kLocal,
                                                         {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  const auto scope = strategy.scope();
  auto net = strategy.make<torch::nn::Sequential>(nn::Embedding({.rows = 7, .dim = 2}));

  export_model(net, file_, {torch::tensor({0, 3, 6, 4})});

  const ExportedModel model = exported_model_from_text(SafetensorsFile(file_).metadata().at(kExportedModelKey), file_);
  const Program program = model.program_for(4);
  EXPECT_THAT(program.devices, ElementsAre(""));
  std::vector<std::string> reads;  // what takes the table, or a part of it
  std::set<ValueId> tables{program.variables.at(0).value};
  for (const Instruction& instruction : program.instructions) {
    bool reads_table = false;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](const ValueId& value) { reads_table |= tables.contains(value); });
    }
    if (!reads_table) continue;
    reads.push_back(program.op_of(instruction).name);
    if (reads.back() == "aten::slice.Tensor") tables.insert(instruction.results.at(0).at(0));  // a view
  }
  EXPECT_THAT(reads, testing::Each(testing::AnyOf("aten::slice.Tensor", "muster_rows::gather")));
  EXPECT_THAT(reads, testing::Contains("muster_rows::gather"));
}

TEST_F(ExportModel, WritesACompiledModelUnderAnyStrategy) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  const at::Tensor x = torch::randn({4, 3});
  for (const Strategy& strategy :
       {Strategy(), Strategy(MirroredStrategy()), Strategy(testing_support::strategy_of(cluster, Transport::kLocal))}) {
    auto net = strategy.make<torch::nn::Sequential>(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    Model model = compile(net, {.loss = mean_squared_error});

    export_model(model, file_, {x});

    EXPECT_TRUE(torch::allclose(LoadedModel::load(file_)(x), model.predict(Dataset::from_tensors({x})), 1e-5, 1e-6));
    EXPECT_TRUE(SafetensorsFile(file_).has("0.weight"));
  }
}

TEST_F(ExportModel, ComputesInFloat32ThoughTheModelDoesInBfloat16) {
  torch::nn::Linear net(64, 8);
  const at::Tensor x = torch::randn({4, 64}), exact = net->forward(x).detach();
  Model model = compile(net, {.loss = mean_squared_error, .mixed_precision = true});

  export_model(model, file_, {x});

  EXPECT_TRUE(torch::allclose(LoadedModel::load(file_)(x), exact, 1e-5, 1e-5));
  EXPECT_FALSE(torch::allclose(model.predict(Dataset::from_tensors({x})), exact, 1e-5, 1e-5));
}

}  // namespace
}  // namespace muster::export_model_test
