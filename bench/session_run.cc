// A session of a client with a server process: variables on a ps, arithmetic on a worker, one step at a time.
#include <torch/torch.h>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/session/session.h"
#include "muster/trace/device_scope.h"

namespace muster::bench {

void session_run(const Part&, Bench& bench) {
  constexpr int kWarm = 200, kRuns = 1'000;
  ServerProcesses servers(1, 1);
  Variable a(torch::full({}, 2.0F), {.name = "a", .device = "/job:ps/task:0"});
  Variable b(torch::full({}, 3.0F), {.name = "b", .device = "/job:ps/task:0"});
  Variable x(torch::full({}, 2.0F), {.name = "x", .device = "/job:worker/task:0"});
  auto ps_to_worker = function([&] {
    DeviceScope on("/job:worker/task:0");
    return a.value() + b.value();
  });
  auto worker_only = function([&] {
    DeviceScope on("/job:worker/task:0");
    return x.value() + 1.0;
  });
  Session session({.target = servers.target({"worker", 0})});
  session.run(initializer(a, b, x));
  auto measure = [&](const std::string& name, const auto& step, float expected) {
    auto one = [&] {
      if (session.run(step).template item<float>() != expected) throw internal("session_run: a wrong result");
    };
    for (int i = 0; i < kWarm; ++i) one();
    bench.least({"latency_median_" + name, "us"}, [&] { return median_us(kRuns, one); });
    bench.rate({"rate_" + name, "runs/s"}, kRuns, [&] {
      for (int i = 0; i < kRuns; ++i) one();
    });
  };
  measure("ps_to_worker", ps_to_worker, 5.0F);
  measure("worker_only", worker_only, 3.0F);
}

}  // namespace muster::bench
