#include "bench/models.h"
#include "bench/workloads.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

// ---- Time to trace the step of the MLP
void measure_tracing(Bench& bench) {
  // Milliseconds until there is a program, or, with `run`, until it was run for the first time.
  auto first_call = [](const Pool& pool, torch::nn::Sequential& net, const std::vector<Variable>& variables, bool run) {
    auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
    const at::Tensor x = pool.x[0], y = pool.y[0];
    return 1e3 * seconds([&] { run ? (void)step(x, y) : (void)step.program(x, y); });
  };
  // The first one in a process: libtorch and the dispatcher's hook set themselves up.
  auto cold = [&](bool run) {
    return in_child([&] {
      const Pool pool = make_pool();
      torch::nn::Sequential net = mlp();
      ModuleVariables parameters = adopt(net);
      return first_call(pool, net, parameters.trainable(), run);
    });
  };
  bench.least({"mlp_trace_cold", "ms"}, [&] { return cold(false); });
  bench.least({"mlp_first_call_cold", "ms"}, [&] { return cold(true); });

  const Pool pool = make_pool();
  torch::nn::Sequential net = mlp();
  ModuleVariables parameters = adopt(net);
  const std::vector<Variable> variables = parameters.trainable();
  for (bool run : {false, true}) {
    bench.least({run ? "mlp_first_call_warm" : "mlp_trace_warm", "ms"}, [&] {
      double least = first_call(pool, net, variables, run);
      for (int i = 0; i < 20; ++i) least = std::min(least, first_call(pool, net, variables, run));
      return least;
    });
  }
}

// ---- Time per op, on tensors so small that the op itself takes almost none
void measure_ops(Bench& bench) {
  constexpr int kOps = 1000, kRuns = 100;
  auto chain = [](at::Tensor x, at::Tensor y) {
    for (int i = 0; i < kOps; ++i) x = x.mul(y);
    return x;
  };
  auto per_op = [&](const auto& run) {
    run();
    return 1e6 / kOps / kRuns * seconds([&] {
             for (int i = 0; i < kRuns; ++i) run();
           });
  };
  const at::Tensor x = torch::ones({4}), y = torch::ones({4}), with_gradient = torch::ones({4}).requires_grad_();
  auto traced = function(chain);

  bench.least({"per_op", "us"}, [&] { return per_op([&] { traced(x, y); }); });
  bench.least({"per_op_eager", "us", "libtorch"}, [&] { return per_op([&] { chain(x, with_gradient); }); });
  bench.least({"per_op_no_grad", "us", "libtorch"}, [&] {
    torch::NoGradGuard no_gradients;
    return per_op([&] { chain(x, y); });
  });
}

// ---- Peak memory of a deep net
constexpr int kLayers = 40, kWidth = 128;
// An activation has 34 MiB: malloc returns blocks of that size to the system as soon as they are freed.
constexpr int64_t kRows = 70'000;

torch::nn::Sequential deep_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  net->push_back(torch::nn::Linear(kWidth, 10));
  return net;
}

double memory_of(bool traced) {
  constexpr int kSteps = 3;
  const at::Tensor x = torch::rand({kRows, kWidth}), y = torch::randint(10, {kRows});
  torch::nn::Sequential net = deep_net();
  if (traced) {
    ModuleVariables parameters = adopt(net);
    const std::vector<Variable> variables = parameters.trainable();
    auto step = function([&](at::Tensor inputs, at::Tensor labels) { return train(net, variables, inputs, labels); });
    for (int i = 0; i < kSteps; ++i) step(x, y);
  } else {
    EagerTrainer trainer(net);
    for (int i = 0; i < kSteps; ++i) trainer.step(x, y);
  }
  return peak_memory();
}

void measure_memory(Bench& bench) {
  for (bool traced : {true, false}) {
    bench.least({"peak_memory_40_layers", "MiB", traced ? "muster" : "libtorch"},
                [&] { return in_child([&] { return memory_of(traced); }); });
  }
}

}  // namespace

void trace(const Part& part, Bench& bench) {
  if (part.name == "tracing") measure_tracing(bench);
  if (part.name == "per_op") measure_ops(bench);
  if (part.name == "memory") measure_memory(bench);
}

}  // namespace muster::bench
