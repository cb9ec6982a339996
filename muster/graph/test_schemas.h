// The schemas of the ops in programs that tests write down. Not part of the library.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/graph/program.h"

namespace muster::testing_support {

// Schemas as libtorch 2.10 prints them.
inline const std::map<std::string, std::string>& schemas() {
  static const auto* table = [] {
    auto* map = new std::map<std::string, std::string>();
    for (const char* schema : {
             "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
             "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
             "aten::add_.Scalar(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)",
             "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
             "aten::sub_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
             "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor",
             "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor",
             "aten::mul_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)",
             "aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
             "aten::mm(Tensor self, Tensor mat2) -> Tensor",
             "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
             "aten::relu(Tensor self) -> Tensor",
             "aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] "
             "dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
             "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
             "pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor",
             "aten::__lshift__.Scalar(Tensor self, Scalar other) -> Tensor",
             "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, "
             "int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
             "aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] "
             "stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
             "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor",
             "aten::relu_(Tensor(a!) self) -> Tensor(a!)",
             "aten::t(Tensor(a) self) -> Tensor(a)",
             "aten::t_(Tensor(a!) self) -> Tensor(a!)",
             "aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)",
             "aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor",
             "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
             "aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
             "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
             "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? "
             "running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
             "aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, "
             "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) "
             "-> (Tensor, Tensor, Tensor)",
             "aten::bernoulli_.float(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)",
             "aten::rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
             "pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
             "aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
             "pin_memory=None) -> Tensor",
             "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
             "device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
             "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
             "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)",
             "aten::_assert_async(Tensor self) -> ()",
             "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()",
             "aten::_foreach_sub_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()",
             "aten::_foreach_mul_.List(Tensor(a!)[] self, Tensor[] other) -> ()",
             "aten::_foreach_mul_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()",
             "muster_step::momentum_(Tensor(a!) value, Tensor gradient, Tensor(b!) momentum, Tensor rate, float "
             "factor, "
             "float decay, bool nesterov) -> Tensor(a!)",
             "muster_step::momentum_all_(Tensor(a!)[] values, Tensor[] gradients, Tensor(b!)[] momenta, Tensor rate, "
             "float factor, float decay, bool nesterov) -> ()",
             "muster_step::adam_(Tensor(a!) value, Tensor gradient, Tensor(b!) mean, Tensor(c!) variance, Tensor(d!) "
             "steps, Tensor rate, float beta1, float beta2, float epsilon, float decay, bool decoupled) -> Tensor(a!)",
             kCond.schema,
             kLoop.schema,
             kLoopGradient.schema,
             kCopy.schema,
             kCollective.schema,
         }) {
      std::string text = schema;
      (*map)[text.substr(0, text.find('('))] = text;
    }
    return map;
  }();
  return *table;
}

inline std::optional<std::string> schema_of(const std::string& name) {
  auto found = schemas().find(name);
  return found == schemas().end() ? std::nullopt : std::optional(found->second);
}

}  // namespace muster::testing_support
