// Keras-style training of a small net on digits, under whatever strategy the processes around it ask for:
//   fit                                   in this process
//   fit logs/first                        the same; `tensorboard --logdir logs` and `muster plot logs` show how it goes
//   muster run --workers 2 fit            two processes, which take each step together
//   muster run --workers 2 --ps 1 fit     parameter servers and workers that come and go
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "muster/muster.h"

namespace {

// What TF_CONFIG says: parameter servers, several workers, or nothing.
muster::Strategy strategy_here() {
  const auto resolver = muster::TfConfigClusterResolver();
  const muster::ClusterSpec cluster = resolver.cluster_spec();
  if (cluster.contains("ps")) return muster::ParameterServerStrategy(resolver);
  if (!cluster.empty()) return muster::MultiWorkerMirroredStrategy(resolver);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const muster::Strategy strategy = strategy_here();
  torch::manual_seed(1);
  auto net =
      strategy.make<torch::nn::Sequential>(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  auto model = muster::compile(net, {.optimizer = muster::Adam({.learning_rate = 0.001}),
                                     .loss = muster::sparse_categorical_cross_entropy,
                                     .metrics = {muster::Accuracy()}});
  if (strategy.is_chief()) std::cout << model.summary() << "\n";

  const auto digits = muster::Dataset::synthetic_digits(10'000).shuffle(10'000).batch(64);
  const auto others = muster::Dataset::synthetic_digits(1'000, /*seed=*/99).batch(64);
  muster::Callbacks callbacks{muster::EarlyStopping({.patience = 2})};
  if (argc > 1) {
    callbacks.add(muster::TensorBoard({.directory = argv[1],
                                       .histogram_freq = 1,
                                       .hparams = {{"optimizer", "adam"}, {"learning_rate", 0.001}, {"units", 128}}}));
  }
  const muster::History history = model.fit(digits, {.epochs = 5, .validation_data = others, .callbacks = callbacks});

  const double accuracy = history["val_accuracy"].back();
  if (strategy.is_chief()) std::cout << "recognizes " << 100 * accuracy << " % of digits that it has not seen\n";
  return accuracy > 0.9 ? EXIT_SUCCESS : EXIT_FAILURE;
}
