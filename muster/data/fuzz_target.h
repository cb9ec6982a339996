// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <string>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/dataset.h"
#include "muster/data/sources.h"
#include "muster/runtime/local_worker.h"

namespace muster::testing_support {

// A description of a dataset, to the point where it could be read from. Returns whether it got there.
inline bool try_dataset(const std::string& bytes) {
  static LocalWorker& worker = *new LocalWorker({.devices = {.gpus = false}, .run_memory = 64 << 20});
  LogCapture quiet;
  try {
    const std::string written = parse_dataset(bytes).serialize();
    MUSTER_CHECK(parse_dataset(written).serialize() == written);
    open_source(bytes, worker);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support
