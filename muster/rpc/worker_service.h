#pragma once

#include <functional>
#include <vector>

#include "muster/rpc/rpc_server.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {

// Lets others use a worker. `worker` outlives the server that has these methods. `complete` may add to a status what
// the worker does not know.
std::vector<RpcServer::MethodEntry> worker_methods(LocalWorker& worker,
                                                   std::function<void(WorkerStatus&)> complete = nullptr);

}  // namespace muster
