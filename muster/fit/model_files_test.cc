#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"
#include "muster/io/disk.h"
#include "muster/train/checkpoints.h"
#include "muster/train/embedding.h"
#include "muster/train/optimizers.h"

namespace muster::model_files_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::caught;
using testing_support::message_of;

class ModelFiles : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/model"; }
  // With momentum, which is lost if only weights are kept.
  template <class AnyStrategy>
  static Model make(const AnyStrategy& strategy) {
    torch::manual_seed(static_cast<uint64_t>(++made_));
    return compile(strategy.template make<torch::nn::Linear>(3, 2),
                   {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}), .loss = mean_squared_error});
  }
  at::Tensor predict(Model& model) const { return model.predict(Dataset::from_tensors({x_})); }

  inline static int made_ = 0;
  const testing_support::ScopedDirectory folder_;
  const at::Tensor x_ = torch::randn({8, 3}), y_ = torch::randn({8, 2});
};

TEST_F(ModelFiles, LetATrainingGoOnWhereItWasUnderAnotherStrategy) {
  const Strategy none;
  const MirroredStrategy mirrored({"/device:CPU:0", "/device:CPU:1"});
  Model first = make(none);
  first.fit({x_, y_}, {.epochs = 3, .batch_size = 4, .shuffle = false, .verbose = 0});

  first.save(path());
  Model second = make(mirrored);
  second.load(path());

  EXPECT_TRUE(torch::allclose(predict(first), predict(second)));
  EXPECT_EQ(second.optimizer().iterations(), first.optimizer().iterations());
  for (Model* model : {&first, &second}) {
    model->fit({x_, y_}, {.epochs = 2, .batch_size = 4, .shuffle = false, .verbose = 0});
  }
  EXPECT_TRUE(torch::allclose(predict(first), predict(second), 1e-4, 1e-5));
}

Model frozen() {
  torch::nn::Linear net(3, 2);
  for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  return compile(net, {.loss = mean_squared_error});
}

TEST_F(ModelFiles, KeepAModelThatHasNothingToTrain) {
  Model saved = frozen(), loaded = frozen();

  saved.save(path());
  loaded.load(path());

  EXPECT_TRUE(torch::allclose(predict(loaded), predict(saved)));
}

TEST_F(ModelFiles, LoadWhatWasTrainedIntoAModelThatHasNothingToTrain) {
  Model trained = make(Strategy()), loaded = frozen();
  trained.fit({x_, y_}, {.epochs = 2, .verbose = 0});
  EXPECT_FALSE(torch::allclose(predict(loaded), predict(trained)));

  trained.save(path());
  loaded.load(path());

  EXPECT_TRUE(torch::allclose(predict(loaded), predict(trained)));
}

TEST_F(ModelFiles, LoadAModuleInPartsIntoAnyNumberOfPartsAndIntoNone) {
  const InProcessCluster cluster({.workers = 1, .ps = 3, .worker = {.storage = {folder_.path()}}});
  const auto in_parts = [&](int parts) -> Strategy {
    return testing_support::strategy_of(cluster, Transport::kLocal,
                                        {.partitioner = FixedShardsPartitioner{.num_shards = parts}});
  };
  const auto make_net = [](const Strategy& strategy) {
    torch::manual_seed(static_cast<uint64_t>(++made_));
    const auto scope = strategy.scope();
    return compile(strategy.make<torch::nn::Sequential>(nn::Embedding({.rows = 11, .dim = 3}), torch::nn::Flatten(),
                                                        torch::nn::Linear(6, 2)),
                   {.optimizer = Adagrad({.learning_rate = 0.1}), .loss = mean_squared_error});
  };
  const at::Tensor ids = torch::randint(11, {8, 2}), again = torch::arange(10).view({5, 2});
  Model saved = make_net(in_parts(2));
  saved.fit({ids, y_}, {.epochs = 2, .verbose = 0});
  saved.save(path());
  const at::Tensor expected = saved.predict(Dataset::from_tensors({again}));

  for (const Strategy& strategy : {Strategy(), in_parts(3), Strategy(MirroredStrategy({"/device:CPU:0"}))}) {
    Model loaded = make_net(strategy);
    EXPECT_FALSE(torch::allclose(loaded.predict(Dataset::from_tensors({again})), expected));

    loaded.load(path());

    EXPECT_TRUE(torch::allclose(loaded.predict(Dataset::from_tensors({again})), expected, 1e-5, 1e-6));
  }
}

TEST_F(ModelFiles, LetTheSameModelTrainOnAfterAParameterServerWasLost) {
  for (const bool noticed : {true, false}) {  // by a step that has failed
    InProcessCluster cluster({.workers = 1, .ps = 2, .worker = {.storage = {folder_.path()}}});
    Model model = make(ParameterServerStrategy(cluster.resolver()));
    model.train_on_batch(x_, y_);
    model.save(path());
    const int64_t before = model.optimizer().iterations();
    cluster.stop({"ps", 1});
    const Status lost = noticed ? caught([&] { model.train_on_batch(x_, y_); }) : Status();
    cluster.start({"ps", 1});
    const Status not_loaded = noticed ? caught([&] { model.fit({x_, y_}, {.verbose = 0}); }) : Status();

    model.load(path());
    model.train_on_batch(x_, y_);
    model.fit({x_, y_}, {.epochs = 2, .batch_size = 8, .verbose = 0});

    EXPECT_GE(model.optimizer().iterations(), before + 3);
    EXPECT_NO_THROW(model.evaluate({x_, y_}));
    for (const Status& status : {lost, not_loaded}) {
      if (!noticed) continue;
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_EQ(status.task(), "/job:ps/replica:0/task:1");
    }
  }
}

// One layer in two places.
struct TiedImpl : torch::nn::Module {
  TiedImpl() { register_module("again", layer); }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(layer->forward(x)); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 3))};
};
TORCH_MODULE(Tied);

TEST_F(ModelFiles, KeepALayerOnceThatAModuleHasInTwoPlaces) {
  const auto tied = [](const Strategy& strategy) {
    torch::manual_seed(static_cast<uint64_t>(++made_));
    return compile(strategy.make<Tied>(),
                   {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}), .loss = mean_squared_error});
  };
  const Strategy none;
  const MirroredStrategy mirrored({"/device:CPU:0", "/device:CPU:1"});
  Model first = tied(none), second = tied(mirrored);
  first.fit({x_, x_}, {.epochs = 1, .batch_size = 4, .verbose = 0});
  ASSERT_FALSE(torch::allclose(predict(first), predict(second)));

  first.save(path());
  second.load(path());

  EXPECT_TRUE(torch::allclose(predict(first), predict(second)));
}

TEST_F(ModelFiles, AreReplacedByTheNextSave) {
  Model model = make(Strategy());
  model.save(path());
  model.train_on_batch(x_, y_);
  model.save(path());
  model.save(path());  // of the same step
  const at::Tensor saved = predict(model);
  model.train_on_batch(x_, y_);

  model.load(path());

  EXPECT_TRUE(torch::equal(predict(model), saved));
  EXPECT_EQ(CheckpointDirectory(path()).present().size(), 1u);
}

TEST_F(ModelFiles, SayWhatIsMissingOrIsNotTheModels) {
  Model model = make(Strategy());
  EXPECT_THAT(message_of([&] { model.load(path()); }), AllOf(HasSubstr("no model in"), HasSubstr(path())));
  EXPECT_THAT(message_of([&] { model.save(""); }), HasSubstr("no directory"));
  model.save(path());
  Model other = compile(torch::nn::Linear(4, 2),
                        {.optimizer = Sgd({.learning_rate = 0.1, .momentum = 0.9}), .loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { other.load(path()); }), HasSubstr("weight"));
}

TEST_F(ModelFiles, OfAnotherKindAreRefusedWithFewNamesAndWhoTakesThem) {
  const auto deep = [](int layers) {
    torch::nn::Sequential net;
    for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(3, 3));
    return compile(net, {.optimizer = Sgd({.momentum = 0.9}), .loss = mean_squared_error});
  };
  std::string of_callback, of_model;
  {
    Model model = deep(9);
    model.fit({x_, x_}, {.callbacks = {ModelCheckpoint({.directory = path()})}, .verbose = 0});

    of_callback = message_of([&] { model.load(path()); });
    model.save(path() + "_saved");
    of_model = message_of([&] { Checkpoints(model.strategy(), {.directory = path() + "_saved"}).restore(); });
    Checkpoints(model.strategy(), {.directory = path()}).restore();  // as the message says
    model.load(path() + "_saved");
  }

  EXPECT_THAT(of_callback,
              AllOf(HasSubstr("\"model/0.bias\", \"model/0.weight\", \"model/1.bias\", \"model/1.weight\", "
                              "\"model/2.bias\" and "),
                    HasSubstr("ModelCheckpoint"), HasSubstr("Checkpoints(model.strategy(), {.directory = \"" + path()),
                    Not(HasSubstr("3.bias"))));
  EXPECT_THAT(of_model, HasSubstr("Model::save(): model.load(\"" + path() + "_saved\")"));
}

TEST_F(ModelFiles, OfCallbacksAreInADirectoryThatStaysAfterAPowerCut) {
  Model model = make(Strategy());
  std::vector<std::string> synced;
  disk::ScopedFaults watch([&](std::string_view call, const std::string& path) {
    if (call == "fsync") synced.push_back(path);
    return 0;
  });

  model.fit({x_, y_}, {.callbacks = {ModelCheckpoint({.directory = path()})}, .verbose = 0});

  EXPECT_THAT(synced, Contains(folder_.path()));
}

}  // namespace muster::model_files_test
