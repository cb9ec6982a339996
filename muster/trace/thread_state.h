// The scopes that a thread is in.
#pragma once

#include <memory>
#include <string>

namespace muster {

class ReadCacheScope;
class ReplicaContext;
class Tracer;
class VariableCreator;

// All that nests in a thread while it traces. One struct, so that another thread can go on where this one is. Each
// field belongs to the class of its scope, which alone reads and writes it.
struct ThreadState {
  Tracer* tracer = nullptr;           // the innermost active one
  ReplicaContext* replica = nullptr;  // inside of strategy.run()
  ReadCacheScope* read_cache = nullptr;
  std::string device{};  // of DeviceScope
  std::shared_ptr<VariableCreator> creator{};
  int inlined_depth = 0;  // of traced functions that call each other

  static ThreadState& here() {
    thread_local ThreadState state;
    return state;
  }
};

}  // namespace muster
