#include "muster/runtime/executor/parts.h"

namespace muster {
namespace {

constexpr const char* kReadElsewhere = "muster: read elsewhere";

}  // namespace

Error others_still_read() {
  return Error(Status(StatusCode::kOutOfRange, "the sequence of examples has ended here, and others still read theirs",
                      {}, kReadElsewhere));
}

bool is_read_elsewhere(const Status& status) { return status.detail() == kReadElsewhere; }

}  // namespace muster
