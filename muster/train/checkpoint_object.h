// What a user may put into a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/variable.h"
#include "muster/train/optimizer.h"

namespace muster {

// Something that is saved and restored: variables, which live wherever they live, or a text, which this process has.
// Made of the object itself. What is pointed to outlives whoever saves it. A value.
class CheckpointObject {
 public:
  using Save = std::function<std::string()>;
  using Restore = std::function<void(const std::string&)>;
  // By the names that they have in the object, whatever else is in the process; "": it is the object.
  using Variables = std::vector<std::pair<std::string, Variable>>;

  CheckpointObject(Variable variable) : variables_({{"", std::move(variable)}}) {}   // NOLINT: an object
  CheckpointObject(const std::vector<Variable>& variables);                          // NOLINT: 0, 1, …
  CheckpointObject(const ModuleVariables& adopted) : variables_(adopted.named()) {}  // NOLINT: as the module does
  template <TorchModule Module>
  CheckpointObject(const Module& module) : CheckpointObject(adopted(module)) {}  // NOLINT: one that was adopted
  // What it keeps beside the variables that it trains, which have numbers. Throws Error{kInvalidArgument} if it has
  // none yet.
  CheckpointObject(const Optimizer& optimizer);  // NOLINT

  CheckpointObject(int64_t* number);               // NOLINT: such as a step
  CheckpointObject(std::vector<double>* numbers);  // NOLINT: such as what a metric has added up
  // As much: a small tensor of this process, which is replaced by one of the same shape and type.
  CheckpointObject(at::Tensor* tensor);  // NOLINT
  // Where it is in the dataset. It becomes one that goes on there.
  CheckpointObject(Iterator* iterator, Dataset dataset);
  // Whatever can say in words what it is, and become that again.
  CheckpointObject(Save save, Restore restore) : save_(std::move(save)), restore_(std::move(restore)) {}

  const Variables& variables() const { return variables_; }
  bool is_text() const { return save_ != nullptr; }
  std::string save() const { return save_(); }                            // REQUIRES: is_text()
  void restore(const std::string& text) const { return restore_(text); }  // REQUIRES: is_text()

 private:
  Variables variables_;
  Save save_;
  Restore restore_;
};

}  // namespace muster
