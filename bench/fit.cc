// fit() on one machine and on parameter servers, and the bare loop of the same steps.
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster::bench {
namespace {

constexpr int64_t kExamples = 4096;

using BareSteps = Function<std::function<at::Tensor(Iterator&)>>;

// The steps of a training with an accuracy, by hand: what they add up to.
BareSteps bare_steps(torch::nn::Sequential net, const Sgd& sgd, int64_t count = 1) {
  return function(std::function<at::Tensor(Iterator&)>([net, sgd, count](Iterator& it) mutable {
    at::Tensor sums;
    for (int64_t i = 0; i < count; ++i) {
      auto [x, y] = it.next();
      const at::Tensor output = net->forward(x);
      const at::Tensor loss = torch::cross_entropy_loss(output, y);
      sgd.minimize(loss);
      const at::Tensor hits = output.detach().argmax(-1).eq(y).sum();
      const at::Tensor here = torch::stack({loss.detach().to(torch::kDouble), hits.to(torch::kDouble)});
      sums = sums.defined() ? sums + here : here;
    }
    return sums;
  }));
}

// How much longer an epoch of fit() takes than `bare_epoch`, in percent: the median over many that take turns, so that
// a machine whose speed wanders is as slow for both.
double percent_over(Model& model, const ModelInput& data, std::optional<int64_t> steps_per_epoch, int rounds,
                    const std::function<void()>& bare_epoch) {
  std::vector<double> percent;
  auto began = std::chrono::steady_clock::now();
  const LambdaCallback turns({.on_epoch_end = [&](muster::Training& training, const Logs&) {
    const double fitted = since(began), bare = seconds(bare_epoch);
    if (training.epoch > 0) percent.push_back((fitted / bare - 1) * 100);  // the first one opens the data
    began = std::chrono::steady_clock::now();
  }});
  model.fit(data, {.epochs = rounds + 1, .steps_per_epoch = steps_per_epoch, .callbacks = {turns}, .verbose = 0});
  std::nth_element(percent.begin(), percent.begin() + rounds / 2, percent.end());
  return percent[static_cast<size_t>(rounds) / 2];
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
  const BareSteps step = bare_steps(net, sgd);
  auto bare_epoch = [&step](Iterator& batches, int64_t steps) {
    at::Tensor sums = torch::zeros({2}, torch::kDouble);
    for (int64_t i = 0; i < steps; ++i) sums += step(batches);
  };
  figures.push_back(rate_of({part.name + "_bare_loop", "samples/s"}, kEpochs * kExamples, [&] {
    Iterator batches = data.repeat().iterator();  // made in the first epoch and kept, as those of fit() are
    for (int epoch = 0; epoch < kEpochs; ++epoch) bare_epoch(batches, kExamples / kBatch);
  }));
  bench.in_turn(figures);

  constexpr int64_t kSteps = 16;  // of an epoch
  const Dataset few = data.take(kSteps).cache();
  Iterator batches = few.repeat().iterator();
  bare_epoch(batches, kSteps);
  bench.once({part.name + "_fit_over_bare_loop", "%"},
             percent_over(*models[0], few, std::nullopt, 301, [&] { bare_epoch(batches, kSteps); }));
}

void fit_ps_mlp(const Part&, Bench& bench) {
  constexpr int64_t kClosures = 40;  // of an epoch
  const ServerProcesses servers(1, 1);
  const ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  ClusterCoordinator coordinator(strategy);
  const Pool pool = make_pool();
  const Dataset data = Dataset::tensors({pool.x, pool.y}).repeat();
  PerWorkerDataset batches = coordinator.create_per_worker_dataset(data);
  for (const int64_t at_once : {1, 10}) {
    torch::nn::Sequential fitted{nullptr}, net{nullptr};
    {
      const VariableScope scope = strategy.scope();
      fitted = mlp();
      net = mlp();
    }
    Model model = compile(fitted, {.optimizer = Sgd({.learning_rate = kLearningRate}),
                                   .loss = sparse_categorical_cross_entropy,
                                   .metrics = {Accuracy()},
                                   .steps_per_execution = at_once,
                                   .strategy = strategy});
    const VariableScope scope = strategy.scope();
    const Sgd sgd(adopt(net), {.learning_rate = kLearningRate});
    const BareSteps step = bare_steps(net, sgd, at_once);
    auto bare_epoch = [&] {
      std::vector<RemoteValue<at::Tensor>> scheduled;
      for (int64_t i = 0; i < kClosures; ++i) scheduled.push_back(coordinator.schedule(step, batches));
      coordinator.join();
      at::Tensor sums = torch::zeros({2}, torch::kDouble);
      for (const RemoteValue<at::Tensor>& each : scheduled) sums += each.fetch();
    };
    bare_epoch();
    bench.once({str_cat("fit_over_bare_loop_", at_once, "steps_per_execution"), "%"},
               percent_over(model, data, kClosures * at_once, at_once == 1 ? 201 : 51, bare_epoch));
  }
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
