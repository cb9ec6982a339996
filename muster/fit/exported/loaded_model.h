// Runs a model that export_model has written, without the code that has trained it.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/fit/model_signature.h"

namespace muster {

// A handle, cheap to copy. The weights are in this process as long as a handle is, once, whoever runs the model; it
// never changes them. Thread-safe.
//   const auto model = muster::LoadedModel::load("digits.safetensors");
//   at::Tensor probabilities = model(x);
class LoadedModel {
 public:
  static constexpr size_t kMostPrograms = 64;  // that are kept ready, each for a size of batches

  // The file may come from a stranger: nothing in it is trusted, and its program runs only ops that any program may
  // run. Throws Error{kNotFound} for no file, Error{kDataLoss} for one that is damaged or no exported model,
  // Error{kFailedPrecondition} for another version of the format, or of libtorch's ops, Error{kPermissionDenied} for an
  // op that is not allowed.
  static LoadedModel load(const std::string& file);

  const ModelSignature& signature() const;

  // The outputs, in the CPU's memory, for inputs in the order of the signature. A size of batches that is new takes
  // longer the first time. Throws Error{kInvalidArgument} that names the input for another number, element type or
  // shape.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;
  // The same by name.
  std::map<std::string, at::Tensor> run_named(const std::map<std::string, at::Tensor>& inputs) const;

  // The output of a model that has one.
  template <std::convertible_to<at::Tensor>... Inputs>
  at::Tensor operator()(const Inputs&... inputs) const {
    return only_output({inputs...});
  }

 private:
  struct State;
  explicit LoadedModel(std::shared_ptr<State> state) : state_(std::move(state)) {}
  at::Tensor only_output(const std::vector<at::Tensor>& inputs) const;

  std::shared_ptr<State> state_;
};

}  // namespace muster
