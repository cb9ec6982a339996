// Tensors of libtorch in safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/io/safetensors.h"

namespace muster {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Writes the tensors, wherever they are, to a file that appears all at once and takes the place of one that is there.
// Its metadata has a sum of each, which read_weight() looks at. Throws as SafetensorsWriter.
void write_weights(const std::string& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata);

// What a tensor of the file is, also of a type that programs have not, such as at::kFloat8_e4m3fn.
struct WeightSpec {
  at::ScalarType type;
  std::vector<int64_t> sizes;

  std::string to_string() const;  // "float32[2, 3]"
};
WeightSpec spec_of_weight(const SafetensorsFile& file, const std::string& name);
WeightSpec spec_of_weight(const at::Tensor& tensor);

// On the CPU, contiguous. Throws as SafetensorsFile::read, and Error{kDataLoss} if the file has another sum for it;
// files of others have none, and there a bool that is neither 0 nor 1 is that error.
at::Tensor read_weight(const SafetensorsFile& file, const std::string& name);

}  // namespace muster
