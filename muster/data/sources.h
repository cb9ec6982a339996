// Datasets, opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/runtime/element_source.h"

namespace muster {

// Opens what Dataset::serialize wrote, for whoever sent it: it reads files below the directories in `readable` alone.
// `worker` outlives the result. Throws Error.
std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker,
                                           std::vector<std::string> readable = {});

// The same as an option of a worker.
inline OpenSource opens_below(std::vector<std::string> readable) {
  return [readable = std::move(readable)](const std::string& description, Worker& worker) {
    return open_source(description, worker, readable);
  };
}

}  // namespace muster
