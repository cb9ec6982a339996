// fit() on one machine and on parameter servers, and the bare loop of the same steps.
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/parameter_server_strategy.h"
#include "muster/fit/callbacks.h"
#include "muster/fit/model.h"

namespace muster::bench {
namespace {

constexpr int64_t kExamples = 4096;

// The loss of a training with an accuracy, by hand.
Function<std::function<at::Tensor(Iterator&)>> bare_step(torch::nn::Sequential net, const Sgd& sgd) {
  return function(std::function<at::Tensor(Iterator&)>([net, sgd](Iterator& it) mutable {
    auto [x, y] = it.next();
    const at::Tensor output = net->forward(x);
    const at::Tensor loss = torch::cross_entropy_loss(output, y);
    sgd.minimize(loss);
    const at::Tensor hits = output.detach().argmax(-1).eq(y).sum();
    return torch::stack({loss.detach().to(torch::kDouble), hits.to(torch::kDouble)});
  }));
}

}  // namespace

void fit_local(const Part& part, Bench& bench) {
  constexpr int kEpochs = 8;
  torch::manual_seed(1);
  const at::Tensor x = torch::rand({kExamples, 784}), y = torch::randint(10, {kExamples}, torch::kLong);
  const Dataset data = Dataset::tensors({x, y}).batch(kBatch, /*drop_remainder=*/true).cache().prefetch(2);
  std::vector<Figure> figures;
  std::vector<std::shared_ptr<Model>> models;
  for (const int64_t at_once : {1, 10}) {
    auto& model =
        models.emplace_back(std::make_shared<Model>(compile(mlp(), {.optimizer = Sgd({.learning_rate = kLearningRate}),
                                                                    .loss = sparse_categorical_cross_entropy,
                                                                    .metrics = {Accuracy()},
                                                                    .steps_per_execution = at_once})));
    model->fit(data, {.verbose = 0});
    figures.push_back(rate_of({str_cat(part.name, "_", at_once, "steps_per_execution"), "samples/s"},
                              kEpochs * kExamples,
                              [model, data] { model->fit(data, {.epochs = kEpochs, .verbose = 0}); }));
  }
  auto net = mlp();
  const Sgd sgd(adopt(net), {.learning_rate = kLearningRate});
  auto step = bare_step(net, sgd);
  // Kept after the first round, as those of fit() are: batches that another thread has just made are in the processor's
  // cache, at the cost of a second core.
  Iterator batches = data.repeat().iterator();
  figures.push_back(rate_of({part.name + "_bare_loop", "samples/s"}, kEpochs * kExamples, [&] {
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      at::Tensor sums = torch::zeros({2}, torch::kDouble);
      for (int64_t i = 0; i < kExamples / kBatch; ++i) sums += step(batches);
    }
  }));

  bench.in_turn(figures);
}

void fit_dense10(const Part&, Bench& bench) {
  constexpr int64_t kSteps = 100;
  const ServerProcesses servers(3, 2);
  const ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  const auto input = [](InputContext) {
    torch::manual_seed(1);
    return Dataset::tensors({torch::rand({64, 64, 10}), torch::rand({64, 64, 10})}).repeat();
  };
  for (const int64_t at_once : {1, 10}) {
    Model model = compile(strategy.make<torch::nn::Linear>(10, 10), {.optimizer = Sgd({.learning_rate = kLearningRate}),
                                                                     .loss = mean_squared_error,
                                                                     .steps_per_execution = at_once});
    std::chrono::steady_clock::time_point began;
    double took = 0;
    const LambdaCallback clock({.on_epoch_begin = [&](muster::Training&) { began = std::chrono::steady_clock::now(); },
                                .on_epoch_end = [&](muster::Training&, const Logs&) { took = since(began); }});
    model.fit(input, {.steps_per_epoch = kSteps, .verbose = 0});
    bench.least({str_cat("ms_per_step_steps_per_execution_", at_once), "ms/step"}, [&] {
      model.fit(input, {.steps_per_epoch = kSteps, .callbacks = {clock}, .verbose = 0});
      return took * 1e3 / kSteps;
    });
  }
}

}  // namespace muster::bench
