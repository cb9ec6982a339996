// How the workloads that train measure it.
#pragma once

#include <string>

#include "bench/measure.h"
#include "bench/models.h"
#include "muster/trace/function.h"

namespace muster::bench {

inline constexpr int kWarmUp = 5;  // steps

// Samples per second of `steps` calls of step(x, y). The mean of loss(x, y) must have fallen in the end.
template <class Step, class Loss>
void measure_training(const std::string& workload, Bench& bench, const Metric& metric, int steps, Batches& batches,
                      const Step& step, const Loss& loss) {
  const double first = batches.mean(loss);
  batches.feed(kWarmUp, step);

  bench.rate(metric, static_cast<double>(steps) * kBatch, [&] { batches.feed(steps, step); });

  check_fell(workload, first, batches.mean(loss));
}

// One traced step per call.
inline void measure_traced(const std::string& workload, Bench& bench, const std::string& part, int steps,
                           Batches& batches, torch::nn::Sequential net) {
  ModuleVariables parameters = adopt(net);
  const std::vector<Variable> variables = parameters.trainable();
  auto loss = function([&](at::Tensor x, at::Tensor y) { return loss_of(net, x, y); });
  auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
  measure_training(workload, bench, {part + "_1steps_per_call", "samples/s"}, steps, batches, step,
                   [&](const at::Tensor& x, const at::Tensor& y) { return loss(x, y).item<double>(); });
}

// The same with libtorch alone.
inline void measure_eager(const std::string& workload, Bench& bench, const std::string& part, int steps,
                          Batches& batches, torch::nn::Sequential net) {
  EagerTrainer trainer(std::move(net));
  measure_training(
      workload, bench, {part + "_eager", "samples/s", "libtorch"}, steps, batches,
      [&](const at::Tensor& x, const at::Tensor& y) { trainer.step(x, y); },
      [&](const at::Tensor& x, const at::Tensor& y) { return trainer.loss(x, y); });
}

}  // namespace muster::bench
