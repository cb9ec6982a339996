// How the workloads that train measure it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/models.h"
#include "muster/trace/function.h"

namespace muster::bench {

inline constexpr int kWarmUp = 5;  // calls

// One way to train a model, to be measured beside others.
struct Training {
  Metric metric;
  int steps_per_call = 1;
  std::function<void()> call;
  std::function<double()> loss;  // the mean over many batches; falls
};

// Samples per second of each way, in turn, by trials of `steps` steps.
inline void measure_training(const std::string& workload, Bench& bench, int steps,
                             const std::vector<Training>& trainings) {
  std::vector<double> first;
  std::vector<Figure> figures;
  for (const Training& training : trainings) {
    first.push_back(training.loss());
    for (int i = 0; i < kWarmUp; ++i) training.call();
    figures.push_back(rate_of(training.metric, static_cast<double>(steps) * kBatch, [&training, steps] {
      for (int i = 0; i < steps / training.steps_per_call; ++i) training.call();
    }));
  }

  bench.in_turn(figures);

  for (size_t i = 0; i < trainings.size(); ++i) check_fell(workload, first[i], trainings[i].loss());
}

// One traced step per call.
inline Training traced(const std::string& part, const Pool& pool, torch::nn::Sequential net) {
  auto batches = std::make_shared<Batches>(pool);
  auto loss = function([net](at::Tensor x, at::Tensor y) mutable { return loss_of(net, x, y); });
  auto step = function([net, variables = adopt(net).trainable()](at::Tensor x, at::Tensor y) mutable {
    return train(net, variables, x, y);
  });
  return {.metric = {part + "_1steps_per_call", "samples/s"},
          .call = [=] { batches->feed(1, step); },
          .loss = [=] { return batches->mean([&](auto& x, auto& y) { return loss(x, y).template item<double>(); }); }};
}

// The same with libtorch alone.
inline Training eager(const std::string& part, const Pool& pool, torch::nn::Sequential net) {
  auto batches = std::make_shared<Batches>(pool);
  auto trainer = std::make_shared<EagerTrainer>(std::move(net));
  return {.metric = {part + "_eager", "samples/s", "libtorch"},
          .call = [=] { batches->feed(1, [&](auto& x, auto& y) { trainer->step(x, y); }); },
          .loss = [=] { return batches->mean([&](auto& x, auto& y) { return trainer->loss(x, y); }); }};
}

}  // namespace muster::bench
