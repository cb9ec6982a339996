#pragma once

#include <vector>

#include "muster/rpc/rpc_server.h"
#include "muster/runtime/worker/master.h"

namespace muster {

// Lets others use a master, which outlives the server that has these methods.
std::vector<RpcServer::MethodEntry> master_methods(Master& master);

}  // namespace muster
