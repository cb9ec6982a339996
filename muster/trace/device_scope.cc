#include "muster/trace/device_scope.h"

#include "muster/graph/device_spec.h"
#include "muster/trace/tracer.h"

namespace muster {
namespace {

thread_local std::string current_device;

void enter(std::string device) {
  current_device = std::move(device);
  if (Tracer* tracer = Tracer::current()) tracer->device_changed(current_device);
}

}  // namespace

DeviceScope::DeviceScope(std::string_view device) : outer_(current_device) {
  enter(DeviceSpec::parse(current_device).merged_with(DeviceSpec::parse(device)).to_string());
}

DeviceScope::~DeviceScope() { enter(outer_); }

const std::string& DeviceScope::current() { return current_device; }

}  // namespace muster
