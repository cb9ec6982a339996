#include "muster/trace/read_cache.h"

#include "muster/base/status.h"
#include "muster/trace/thread_state.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {

ReadCacheScope::ReadCacheScope() : tracer_(Tracer::current()) {
  if (current() != nullptr) {
    throw invalid_argument("a ReadCacheScope is open already; scopes that keep the values of variables do not nest");
  }
  ThreadState::here().read_cache = this;
}

ReadCacheScope::~ReadCacheScope() { ThreadState::here().read_cache = nullptr; }

ReadCacheScope* ReadCacheScope::current() { return ThreadState::here().read_cache; }

at::Tensor ReadCacheScope::find(const std::shared_ptr<Variable::State>& variable) const {
  // A body of control flow may use what the function around it has read.
  if ((tracer_ == nullptr) != (Tracer::current() == nullptr)) return {};
  auto it = values_.find(variable);
  return it == values_.end() ? at::Tensor() : it->second;
}

at::Tensor ReadCacheScope::keep(const std::shared_ptr<Variable::State>& variable, at::Tensor value) {
  // What a body makes is of no use outside of it.
  if (Tracer::current() != tracer_) return value;
  // While tracing, the value is the memory that writes go to.
  if (tracer_ != nullptr) value = value.clone();
  return values_[variable] = value;
}

}  // namespace muster
