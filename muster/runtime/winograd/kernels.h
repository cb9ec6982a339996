// The inner loops of Winograd convolution, for each kind of vectors that a CPU may have.
//
// A tile of 4 x 4 outputs of a 3 x 3 convolution is made of 6 x 6 elements of the image. Both image and weights are
// brought to 36 numbers each, whose products, summed over channels, are brought back: 36 multiplications instead of
// 144. What does so are the values of polynomials at five points and at infinity, in both directions: 0, 3/4, -3/4, 3/2
// and -3/2, because with these the rounding errors are smallest among those whose powers are exact.
#pragma once

#include <cstdint>

namespace muster {

inline constexpr int64_t kWinogradOutputs = 4, kWinogradInputs = 6;  // of a tile, in each direction
inline constexpr int64_t kWinogradPlanes = kWinogradInputs * kWinogradInputs;
inline constexpr int64_t kFloatsOfLine = 16;

// A square part of an image whose channels lie side by side. Of its elements only those in rows and columns
// [first, last) are there; what is read of the others is zero, and what is written is dropped.
struct ImagePatch {
  float* image;
  int64_t row, column;  // of its first element in the image, which may be outside
  int64_t row_stride, column_stride;
  int64_t first_row, last_row, first_column, last_column;
};

// Planes of numbers that are to be multiplied, or were: the plane of each of the 36 positions is `stride` away from the
// next. Of a row of channels a whole number of vectors is read and written.
struct WinogradPlanes {
  float* data;
  int64_t stride;
};

struct WinogradFactor {
  const float* data;
  int64_t row_stride, column_stride;
};

struct WinogradKernels {
  int64_t lanes;  // floats of a vector

  void (*image_to_planes)(const ImagePatch& image, int64_t channels, WinogradPlanes planes);
  // Adds the patch's sum to `sums`, a row of channels, if that is not null.
  void (*gradient_to_planes)(const ImagePatch& gradient, int64_t channels, WinogradPlanes planes, float* sums);
  // `weights`: nine rows of channels, so far apart; and so are those of the last one.
  void (*weights_to_planes)(const float* weights, int64_t weights_stride, int64_t channels, WinogradPlanes planes);
  // And adds `bias`, a row of channels.
  void (*planes_to_output)(WinogradPlanes planes, int64_t channels, const float* bias, const ImagePatch& output);
  // Adds to the image.
  void (*planes_to_image)(WinogradPlanes planes, int64_t channels, const ImagePatch& image);
  void (*planes_to_weights)(WinogradPlanes planes, int64_t channels, float* weights, int64_t weights_stride);

  // The product, rows x columns, or adds it to what there is. The columns of b and of the product lie side by side, and
  // there are whole vectors of them.
  void (*multiply)(WinogradFactor a, const float* b, int64_t b_stride, float* product, int64_t product_stride,
                   int64_t rows, int64_t inner, int64_t columns, bool add);
};

// Each is null if it was not compiled; whether the CPU has such vectors is for the caller to know.
const WinogradKernels* winograd_avx512();
const WinogradKernels* winograd_avx2();
const WinogradKernels* winograd_any();  // 128 bits, which every CPU of 64 bits has

}  // namespace muster
