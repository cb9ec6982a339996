#include "muster/runtime/tuning/tuning_options.h"

#include <cstdlib>

#include "muster/base/status.h"

namespace muster {
namespace {

TuningMode mode_named(std::string_view name) {
  if (name == "measure") return TuningMode::kMeasure;
  if (name == "pinned") return TuningMode::kPinned;
  if (name == "off") return TuningMode::kOff;
  throw invalid_argument("MUSTER_TUNING is \"", name, "\", expected measure, pinned or off");
}

}  // namespace

TuningOptions with_environment(TuningOptions options) {
  if (!options.mode) {
    const char* mode = std::getenv("MUSTER_TUNING");
    options.mode = mode == nullptr ? TuningMode::kMeasure : mode_named(mode);
  }
  if (const char* file = std::getenv("MUSTER_TUNING_FILE"); file != nullptr && options.file.empty()) {
    options.file = file;
  }
  if (options.mode == TuningMode::kPinned && options.file.empty()) {
    throw invalid_argument("tuning is pinned, but to no file; expected TuningOptions::file or MUSTER_TUNING_FILE");
  }
  return options;
}

}  // namespace muster
