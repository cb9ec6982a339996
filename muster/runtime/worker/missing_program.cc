#include "muster/runtime/worker/missing_program.h"

namespace muster {
namespace {

constexpr const char* kMissingProgramDetail = "muster: the program is not registered";

}  // namespace

Status missing_program(const std::string& task, uint64_t handle) {
  return {StatusCode::kNotFound, str_cat("program ", handle, " is not registered at ", task), task,
          kMissingProgramDetail};
}

bool is_missing_program(const Status& status) {
  return status.code() == StatusCode::kNotFound && status.detail() == kMissingProgramDetail;
}

}  // namespace muster
