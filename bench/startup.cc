// From the start of three workers, two parameter servers and a client, each a process, to the client's first result.
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/session/session.h"
#include "muster/trace/device_scope.h"

namespace muster::bench {

void startup(const Part&, Bench& bench) {
  double idle = 0;
  bench.least({"total", "s"}, [&] {
    return seconds([&] {
      ServerProcesses servers(3, 2);
      wait_for(start_self({"first-result", "--cluster", servers.spec().to_json()}));
      idle = resident_memory(servers.pid({"ps", 0}));
    });
  });
  bench.least({"ps_rss", "MiB"}, [&] { return idle; });
}

void first_result(const ClusterSpec& spec) {
  auto sum = function([&](at::Tensor x) {
    for (const TaskId& task : spec.all_tasks()) {
      DeviceScope on(task.to_string());
      x = at::add(x, 1);
    }
    return x;
  });
  Session session({.target = "grpc://" + spec.task_address("worker", 0)});
  const float result = session.run(sum, at::ones({})).item<float>();
  if (result != 1.0F + static_cast<float>(spec.all_tasks().size())) throw internal("startup: a wrong result");
}

}  // namespace muster::bench
