// The net of `mlp_local` on two logical devices of this process, a batch for each.
#include "bench/training.h"
#include "bench/workloads.h"
#include "muster/distribute/local_strategies.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/train/optimizers.h"

namespace muster::bench {

void mirrored_mlp(const Part& part, Bench& bench) {
  constexpr int kSteps = 500, kDevices = 2;
  set_local_options({.devices = {.cpus = kDevices, .gpus = false}});
  const bool central = part.name == "central_storage";
  const Strategy strategy = central ? Strategy(CentralStorageStrategy()) : Strategy(MirroredStrategy());
  const Pool pool = make_pool();
  auto net =
      strategy.make<torch::nn::Sequential>(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  const Sgd sgd(net, {.learning_rate = kLearningRate});
  auto step = function([&](Iterator& it) {
    auto [x, y] = it.next();
    sgd.minimize(loss_of(net, x, y));
  });
  auto loss = function([&](const torch::Tensor& x, const torch::Tensor& y) { return loss_of(net, x, y); });
  auto mean_loss = [&] {
    return Batches(pool).mean([&](const torch::Tensor& x, const torch::Tensor& y) {
      return loss(x.contiguous(), y.contiguous()).item<double>();
    });
  };
  Iterator batches =
      strategy.distribute([&](const InputContext&) { return Dataset::tensors({pool.x, pool.y}).repeat(); });

  const double first = mean_loss();
  for (int steps : {1, 10}) {
    auto several = function([&](Iterator& it) { repeat(steps, [&](at::Tensor) { strategy.run(step, it); }); });
    auto train = [&](int count) {
      for (int i = 0; i < count; i += steps) steps == 1 ? strategy.run(step, batches) : several(batches);
    };
    train(kWarmUp * steps);
    bench.rate({str_cat(central ? "central_" : "", kDevices, "devices_", steps, "steps_per_call"), "samples/s"},
               static_cast<double>(kSteps) * kDevices * kBatch, [&] { train(kSteps); });
  }
  check_fell("mirrored_mlp", first, mean_loss());
}

}  // namespace muster::bench
