#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster {

// kMeasure: what is not known yet is measured, once, and remembered. kPinned: nothing is measured; what the file lacks
// runs as it was recorded. kOff: everything does.
enum class TuningMode { kMeasure, kPinned, kOff };

// How a worker comes to know which implementation of an op is fastest here (autotuner.h).
struct TuningOptions {
  std::optional<TuningMode> mode{};  // none: MUSTER_TUNING=measure|pinned|off in the environment, else kMeasure
  // What was measured is remembered here beyond the process (tuning_file.h); empty: MUSTER_TUNING_FILE, else nowhere.
  std::string file{};
};

// The same with what the environment says where they say nothing. Throws Error{kInvalidArgument} for a mode that there
// is not, and for kPinned without a file.
TuningOptions with_environment(TuningOptions options);

}  // namespace muster
