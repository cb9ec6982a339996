// The weights of modules in safetensors files, as PyTorch users save and load them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/trace/module_variables.h"

namespace muster {

struct LoadWeightsOptions {
  // The file has all that the module has, and nothing else. Without, the report says what was missing and what was
  // left.
  bool strict = true;
  // Of names in the file, and what stands for them in the module: {{"model.encoder.", "encoder."}, {"module.", ""}}.
  // The first that fits a name is taken.
  std::vector<std::pair<std::string, std::string>> prefixes{};
  // What a name of the file is in the module, after that; nothing: the tensor is not wanted.
  std::function<std::optional<std::string>(const std::string& name)> rename{};
  // Element types are converted where the numbers stay what they are, up to rounding: not from complex to real numbers,
  // nor from floating ones to integers, nor to a type that has no room for a value. Without, they must be the same.
  bool cast = true;
};

struct LoadWeightsReport {
  std::vector<std::string> loaded{};      // by the module's names, in its order
  std::vector<std::string> missing{};     // of the module, which keep their values
  std::vector<std::string> unexpected{};  // of the file, which nobody has got
};

struct SaveWeightsOptions {
  std::optional<at::ScalarType> dtype{};  // that floating-point tensors get in the file, such as at::kHalf
  std::map<std::string, std::string> metadata{};
};

namespace weights_internal {

// A module's tensor under one of its names.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

LoadWeightsReport load(const std::vector<NamedTensor>& tensors, const std::string& file,
                       const LoadWeightsOptions& options);
void save(const std::vector<NamedTensor>& tensors, const std::string& file, const SaveWeightsOptions& options);

template <class Module>
std::vector<NamedTensor> tensors_of(const Module& module) {
  if constexpr (requires { module.named_parameters(); }) {
    std::vector<NamedTensor> tensors;
    for (const auto& parameter : module.named_parameters()) tensors.push_back({parameter.key(), parameter.value()});
    for (const auto& buffer : module.named_buffers()) tensors.push_back({buffer.key(), buffer.value()});
    std::erase_if(tensors, [](const NamedTensor& each) { return !each.tensor.defined(); });
    return tensors;
  } else {
    return tensors_of(*module);
  }
}

}  // namespace weights_internal

// Gives the parameters and buffers of a module the values that they have in a safetensors file, such as
// safetensors.torch.save_file(model.state_dict(), file) writes. Where they stand for variables, the variables get them,
// too, wherever they live; under a strategy of several processes each of them loads the same file. A tensor that the
// module has under several names needs to be in the file under one of them.
// Throws Error{kInvalidArgument} that names all that does not fit (the first ten of each kind), Error{kDataLoss} for a
// file that is damaged, Error{kNotFound} for none. Nothing is changed then.
// Limit: a parameter server that is lost meanwhile leaves some variables changed and some not.
template <class Module>
LoadWeightsReport load_safetensors(const Module& module, const std::string& file,
                                   const LoadWeightsOptions& options = {}) {
  static_assert(TorchModule<const Module>, "load_safetensors takes a torch::nn module or its holder");
  return weights_internal::load(weights_internal::tensors_of(module), file, options);
}

// Writes the parameters and buffers of a module, with the values of the variables that they stand for, under the
// module's names, for load_safetensors and for Python: model.load_state_dict(safetensors.torch.load_file(file)). A file
// that is there is replaced, all at once. Throws as SafetensorsWriter, and Error{kInvalidArgument} that names the
// tensors with values that the dtype has no room for; nothing is written then.
template <class Module>
void save_safetensors(const Module& module, const std::string& file, const SaveWeightsOptions& options = {}) {
  static_assert(TorchModule<const Module>, "save_safetensors takes a torch::nn module or its holder");
  weights_internal::save(weights_internal::tensors_of(module), file, options);
}

}  // namespace muster
