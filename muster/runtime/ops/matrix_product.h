// Products of matrices that need not go through libtorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace muster {

// Calls aten::mm or aten::addmm, whose second factor is at this position of the stack, with our own kernels
// (float_product.h): arguments are replaced by the result, which is equal up to rounding. False, and nothing was done,
// if it is left to libtorch; which of the two depends on nothing but shapes, strides and types.
bool multiply_here(int second_factor, std::vector<c10::IValue>& stack);

// Whether add_product() takes these: never if they take more memory than the product would. REQUIRES: the factors share
// no memory with the target.
bool adds_here(const at::Tensor& target, const at::Tensor& first, const at::Tensor& second);

// Adds alpha times the product of two matrices to a third one, without making it. REQUIRES: adds_here().
void add_product(const at::Tensor& target, const at::Tensor& first, const at::Tensor& second, double alpha);

// Calls aten::mm so that the product is in columns.
void multiply_into_columns(std::vector<c10::IValue>& stack);

}  // namespace muster
