#pragma once

#include <string>

#include "muster/base/status.h"
#include "muster/distribute/strategy.h"
#include "muster/io/checkpoint_directory.h"

namespace muster {

// Now, so that one that cannot be is an error before the first epoch. Servers make theirs.
inline void make_directory(const char* who, const std::string& directory, const Strategy& strategy) {
  if (strategy.servers() || !strategy.is_chief()) return;
  try {
    CheckpointDirectory(directory).make();
  } catch (const Error& error) {
    throw unavailable(who, ": the directory \"", directory, "\" cannot be made: ", error.status().message());
  }
}

}  // namespace muster
