// Kernels of our own for images in a GPU's memory. They are compiled by nvcc, without libtorch's headers, and are there
// only if it was found (MUSTER_CUDA_KERNELS); image_ops.cc checks what they are given. Each puts its work on the stream
// (a cudaStream_t) without waiting for it, needs no memory besides what it is given, and returns CUDA's error.
#pragma once

#include <cstdint>

namespace muster::image_kernels {

enum class Number : int8_t { kFloat, kBfloat16 };

// Something with channels: [images, channels, pixels], or, if channels are last, [images, pixels, channels].
struct Shape {
  Number number = Number::kFloat;
  bool channels_last = false;
  int64_t images = 0, channels = 0, pixels = 0;
};

// How many numbers side by side a thread takes at a time; 0: there are no kernels for such a shape. What is in memory
// lies at a multiple of that many numbers.
int numbers_at_a_time(const Shape& shape);

// Whether the device, by its number, can run them.
bool run_on(int device);

// Of the floats that a call needs to work with.
int64_t workspace(const Shape& shape);

// Batch norm in training, and if they are wanted the sum with another tensor and relu in one.
struct Normalization {
  const void* input;
  const void* other;  // null: nothing is added
  bool relu;
  const float *weight, *bias;         // by channel; null: 1 and 0
  float *running_mean, *running_var;  // null: nobody keeps them
  float momentum, epsilon;
  void* output;
  float *mean, *invstd;  // for the backward pass
  uint8_t* positive;     // the same, with relu: a bit for each number, a byte for those that a thread takes at a time
  float* workspace;
};
int normalize(const Shape& shape, const Normalization& call, void* stream);

struct NormalizationGradient {
  const void* gradient;
  const void* more;         // to be added to the gradient; null: nothing
  const uint8_t* positive;  // of relu; null: there was none
  const void* input;
  const float *weight, *mean, *invstd;
  void* kept;                              // the gradient behind relu, which is that of the other summand; may be null
  void* input_gradient;                    // null: not wanted
  float *weight_gradient, *bias_gradient;  // null: not wanted
  float* workspace;
};
int normalize_backward(const Shape& shape, const NormalizationGradient& call, void* stream);

// Max pooling. What was the greatest of a window is kept as its place in that, row by row.
struct Windows {
  Number number = Number::kFloat;
  bool channels_last = false;
  int images = 0, channels = 0, rows = 0, columns = 0, output_rows = 0, output_columns = 0;
  int height = 0, width = 0;  // of a window; at most 255 places
  int row_stride = 1, column_stride = 1, row_padding = 0, column_padding = 0, row_dilation = 1, column_dilation = 1;
};
int max_pool(const Windows& windows, const void* input, void* output, uint8_t* places, void* stream);
int max_pool_backward(const Windows& windows, const void* gradient, const uint8_t* places, void* input_gradient,
                      void* stream);

}  // namespace muster::image_kernels
