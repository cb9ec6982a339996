// Datasets, opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/runtime/worker/element_source.h"

namespace muster {

// Where the datasets of others read files, and where they write their caches.
struct DataDirectories {
  std::vector<std::string> readable{};
  std::vector<std::string> writable{};
};

// Opens what Dataset::serialize wrote, for whoever sent it: it uses files below these directories alone.
// `worker` outlives the result. Throws Error.
std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker,
                                           DataDirectories directories = {});

// The same as an option of a worker.
inline OpenSource opens_below(DataDirectories directories) {
  return [directories = std::move(directories)](const std::string& description, Worker& worker) {
    return open_source(description, worker, directories);
  };
}

}  // namespace muster
