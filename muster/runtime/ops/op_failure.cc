#include "muster/runtime/ops/op_failure.h"

#include <c10/util/Exception.h>

#include "muster/runtime/worker/lost_device.h"

namespace muster {

Status status_of_op_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const c10::OutOfMemoryError& error) {
    return {StatusCode::kResourceExhausted, error.what_without_backtrace()};
  } catch (const c10::NotImplementedError& error) {
    return {StatusCode::kUnimplemented, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (says_device_lost(what)) return lost_device_status();
    const bool memory = what.find("DefaultCPUAllocator") != std::string::npos;
    return {memory ? StatusCode::kResourceExhausted : StatusCode::kInvalidArgument, what};
  } catch (...) {
    return muster::status_of(std::current_exception());
  }
}

}  // namespace muster
