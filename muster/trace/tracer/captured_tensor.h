// What a function has captured and a program has made constants of.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/graph/program.h"

namespace muster {

// A tensor from outside whose elements became part of a program. It is not kept alive: that it has gone is one of the
// changes that can be seen (a variable of the caller that was given another tensor). Any thread may ask.
class CapturedTensor {
 public:
  explicit CapturedTensor(const at::Tensor& tensor);

  // What was done to it since the trace, in words: "was written to", "was replaced"; "" if nothing was.
  std::string change() const;
  bool alive() const { return tensor_.use_count() > 0; }
  bool requires_grad() const { return requires_grad_; }
  const TensorSpec& spec() const { return spec_; }

 private:
  mutable c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::VariableVersion version_;  // counts the writes; shared with the tensor and all its views
  uint32_t version_then_;
  const void* storage_then_;
  bool requires_grad_;
  TensorSpec spec_;
};

}  // namespace muster
