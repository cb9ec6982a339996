// What an exported model takes and gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// Of the metadata, in safetensors files and in checkpoints, that has the program of a model.
inline constexpr const char* kExportedModelKey = "muster.model";
inline constexpr int64_t kBatchSize = -1;  // in place of a size that is that of the batch

struct ModelTensor {
  std::string name{};
  TensorSpec spec{};  // with kBatchSize where the size is free, or one of several

  std::string to_string() const;  // "x: float32[batch, 784]"
};

struct ModelSignature {
  std::string name{};
  std::vector<ModelTensor> inputs{};
  std::vector<ModelTensor> outputs{};
  bool any_batch = false;              // batches may have any number of examples
  std::vector<int64_t> batch_sizes{};  // else these; those that have a program of their own, if any_batch

  std::string to_string() const;  // some lines of text
};

}  // namespace muster
