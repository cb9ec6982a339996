// The ops of row_ops.h made of libtorch's own, for devices that have no kernels of ours: GPUs. Where their kernels
// would only assert it, a row that is not there is an Error{kOutOfRange} here too, which waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <tuple>
#include <vector>

namespace muster::rows::composed {

// As in row_ops.h, but for one thing: the different ids come in rising order.
std::tuple<at::Tensor, std::vector<at::Tensor>> unique(const at::Tensor& ids, at::IntArrayRef starts);
std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> route(const at::Tensor& ids, at::IntArrayRef starts);
at::Tensor gather(const at::Tensor& table, const at::Tensor& ids);
at::Tensor expand(const at::Tensor& places, at::TensorList rows);
std::vector<at::Tensor> sum(const at::Tensor& gradient, const at::Tensor& places, at::TensorList ids);
void add_(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, double scale);
void adagrad_(at::Tensor& table, at::Tensor& sums, const at::Tensor& ids, const at::Tensor& gradient,
              const at::Tensor& rate, double epsilon);
void adam_(at::Tensor& table, at::Tensor& mean, at::Tensor& variance, const at::Tensor& step, const at::Tensor& ids,
           const at::Tensor& gradient, const at::Tensor& rate, double beta1, double beta2, double epsilon,
           double decay);

// Throws Error{kOutOfRange} for ids that one of the tables has not.
void check_rows(const char* op, const at::Tensor& ids, std::initializer_list<at::Tensor> tables);

// All rows at once: memory of a GPU is not given out page by page.
void on_demand_(at::Tensor& table, int64_t kind, double a, double b, int64_t seed, int64_t first_row);

}  // namespace muster::rows::composed
