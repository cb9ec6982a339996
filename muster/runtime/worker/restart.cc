#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

constexpr const char* kRestartDetail = "muster: the task was restarted";

}  // namespace

Status restarted(const std::string& task, const std::string& message) {
  return {StatusCode::kAborted, message, task, kRestartDetail};
}

bool is_restart(const Status& status) {
  return status.code() == StatusCode::kAborted && status.detail() == kRestartDetail;
}

}  // namespace muster
