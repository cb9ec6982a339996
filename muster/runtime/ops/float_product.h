// Products of matrices of floats on CPUs: on arm64 for the sizes that layers have, elsewhere small ones.
//
// On arm64 libtorch hands these to oneDNN, which needs 40 microseconds and more before it begins to multiply and copies
// the weight first, or to OpenBLAS: at 64 rows they reach a quarter to two thirds of what the CPU can do, this four
// fifths and more. Factors are copied by pieces that stay in the caches, whichever way they lie. Elsewhere libtorch
// is as fast as the CPU, but for a few thousand multiplications it takes ten times as long to get there.
#pragma once

#include <cstdint>

namespace muster {

// Elements are at data[row * row_stride + column * column_stride].
struct FloatMatrix {
  const float* data;
  int64_t rows, columns, row_stride, column_stride;
};

// Whether multiply_floats() takes these. Only sizes and strides decide, so that a product has the same bits each time.
bool multiplies_floats(const FloatMatrix& a, const FloatMatrix& b);

// `result`, whose rows are so far apart, becomes alpha * a b, or that is added to it. The bits do not depend on the
// number of threads. REQUIRES: multiplies_floats(a, b).
void multiply_floats(const FloatMatrix& a, const FloatMatrix& b, float* result, int64_t row_stride, float alpha,
                     bool add);

}  // namespace muster
