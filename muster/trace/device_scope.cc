#include "muster/trace/device_scope.h"

#include "muster/graph/device_spec.h"
#include "muster/trace/thread_state.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

void enter(std::string device) {
  if (Tracer* tracer = Tracer::current()) tracer->device_changed(device);
  ThreadState::here().device = std::move(device);
}

}  // namespace

DeviceScope::DeviceScope(std::string_view device) : outer_(current()) {
  enter(DeviceSpec::parse(outer_).merged_with(DeviceSpec::parse(device)).to_string());
}

DeviceScope::~DeviceScope() { enter(outer_); }

const std::string& DeviceScope::current() { return ThreadState::here().device; }

}  // namespace muster
