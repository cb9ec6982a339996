// What every op on rows asks of its operands before it looks into their memory: a program may give it anything.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster::rows {

std::string name_of(const at::Tensor& tensor);  // how an operand is called in an error

// Each throws Error{kInvalidArgument} that names the op.
at::Tensor checked_ids(const char* op, const at::Tensor& ids);        // int64[n], contiguous
at::Tensor checked_places(const char* op, const at::Tensor& places);  // int32[n], contiguous
void check_table(const char* op, const at::Tensor& table);
void check_pair(const char* op, const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows);
void check_parts(const char* op, at::TensorList rows);
void check_gradient(const char* op, const at::Tensor& gradient, const at::Tensor& places);
void check_starts(at::IntArrayRef starts);  // the first rows of the parts, and the number of all

[[noreturn]] void refuse_id(int64_t id, int64_t rows);  // Error{kOutOfRange}

}  // namespace muster::rows
