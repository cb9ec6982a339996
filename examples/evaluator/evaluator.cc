// Training, and an evaluator beside it for which nobody waits: two processes of this program, which meet in the folder
// "checkpoints". TF_CONFIG says which of them it is:
//   TF_CONFIG='{"cluster": {"chief": ["localhost:2222"]}, "task": {"type": "evaluator", "index": 0}}' evaluator
//   evaluator
// examples/evaluator/run starts both.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

namespace {

constexpr int kEpochs = 5;
constexpr int64_t kStepsPerEpoch = 50;

muster::Model compiled() {
  torch::manual_seed(1);
  return muster::compile(
      torch::nn::Sequential(torch::nn::Linear(784, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10)),
      {.optimizer = muster::Adam({.learning_rate = 0.001}),
       .loss = muster::sparse_categorical_cross_entropy,
       .metrics = {muster::Accuracy()}});
}

int evaluate() {
  double accuracy = 0;
  const auto others = muster::Dataset::synthetic_digits(1'000, /*seed=*/99).batch(100);
  muster::SidecarEvaluator evaluator(compiled(), others,
                                     {.directory = "checkpoints",
                                      .logs = "logs",
                                      .patience = std::chrono::seconds(60),
                                      .look_every = std::chrono::milliseconds(20),
                                      .best = "best",
                                      .monitor = "accuracy",
                                      .on_evaluation = [&](int64_t step, const muster::Logs& logs) {
                                        accuracy = logs.at("accuracy");
                                        std::cout << "evaluator: after step " << step << "  accuracy " << accuracy
                                                  << std::endl;
                                        return step < kEpochs * kStepsPerEpoch;
                                      }});
  evaluator.run();
  return accuracy > 0.9 ? 0 : 1;
}

int train() {
  const auto digits = muster::Dataset::synthetic_digits(64 * kStepsPerEpoch).shuffle(64 * kStepsPerEpoch).batch(64);
  compiled().fit(digits, {.epochs = kEpochs,
                          .callbacks = {muster::ModelCheckpoint({.directory = "checkpoints"}),
                                        muster::TensorBoard({.directory = "logs"})},
                          .verbose = 2});
  return 0;
}

}  // namespace

int main() {
  try {
    return muster::TfConfigClusterResolver().task_type() == "evaluator" ? evaluate() : train();
  } catch (const std::exception& error) {
    std::cerr << "evaluator: " << error.what() << "\n";
    return 1;
  }
}
