#include "muster/runtime/gpu/image_kernels.cuh"

namespace muster::image_kernels {
namespace {

// Where a pack of an image is.
struct Pixel {
  uint32_t pack, column, row, image;
};
struct Image {
  Divisor packs, columns, rows;  // packs of a pixel
  __device__ Pixel pixel(uint32_t number) const {
    Pixel at;
    at.pack = packs.divide(number);
    at.column = columns.divide(number);
    at.row = rows.divide(number);
    at.image = number;
    return at;
  }
  __device__ uint32_t number(const Pixel& at) const {
    return ((at.image * rows.value + at.row) * columns.value + at.column) * packs.value + at.pack;
  }
};

// kWidth: of the windows, without dilation; 0: any.
template <class T, int kCount, int kWidth>
__global__ void __launch_bounds__(kThreads)
    pool_kernel(Windows windows, Image from, Image to, uint32_t packs, const T* input, T* output, uint8_t* places) {
  constexpr int kColumns = kWidth == 0 ? 1 : kWidth;  // that are loaded before the first is used
  using P = Pack<T, kCount>;
  const P* inputs = reinterpret_cast<const P*>(input);
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= packs) return;
  const Pixel at = to.pixel(i);
  const int top = static_cast<int>(at.row) * windows.row_stride - windows.row_padding,
            left = static_cast<int>(at.column) * windows.column_stride - windows.column_padding;
  float greatest[kCount];
  int place[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    greatest[k] = -INFINITY;
    place[k] = -1;
  }
  const int width = kWidth == 0 ? windows.width : kWidth, apart = kWidth == 0 ? windows.column_dilation : 1;
  for (int a = 0; a < windows.height; ++a) {
    const int y = top + a * windows.row_dilation;
    if (y < 0 || y >= windows.rows) continue;
    for (int first = 0; first < width; first += kColumns) {
      P pixel[kColumns];
      bool is_there[kColumns];
#pragma unroll
      for (int b = 0; b < kColumns; ++b) {
        const int x = left + (first + b) * apart;
        is_there[b] = x >= 0 && x < windows.columns;
        if (is_there[b]) {
          pixel[b] = inputs[from.number({at.pack, static_cast<uint32_t>(x), static_cast<uint32_t>(y), at.image})];
        }
      }
#pragma unroll
      for (int b = 0; b < kColumns; ++b) {
        if (!is_there[b]) continue;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const float value = number(pixel[b].at[k]);
          if (value > greatest[k] || value != value || place[k] < 0) {
            greatest[k] = value;
            place[k] = a * width + first + b;
          }
        }
      }
    }
  }
  P result;
  Pack<uint8_t, kCount> kept;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    result.at[k] = rounded<T>(greatest[k]);
    kept.at[k] = static_cast<uint8_t>(place[k]);
  }
  reinterpret_cast<P*>(output)[i] = result;
  reinterpret_cast<Pack<uint8_t, kCount>*>(places)[i] = kept;
}

struct Steps {
  Divisor row_stride, column_stride, row_dilation, column_dilation;
};

// Each number of the input collects the gradients of the windows whose greatest it was. kWindows: in how many a row is
// at most, and a column; those are loaded before the first is used.
template <class T, int kCount, int kWindows>
__global__ void __launch_bounds__(kThreads)
    pool_backward_kernel(Windows windows, Image from, Image to, uint32_t packs, Steps steps, const T* gradient,
                         const uint8_t* places, T* input_gradient) {
  using P = Pack<T, kCount>;
  using Places = Pack<uint8_t, kCount>;
  const P* gradients = reinterpret_cast<const P*>(gradient);
  const auto* kept = reinterpret_cast<const Places*>(places);
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= packs) return;
  const Pixel at = from.pixel(i);
  const int y = static_cast<int>(at.row) + windows.row_padding,
            x = static_cast<int>(at.column) + windows.column_padding;
  // The last window that begins at this pixel or before it; those before that follow at the stride's distance.
  const int bottom = static_cast<int>(steps.row_stride.quotient(y)),
            right = static_cast<int>(steps.column_stride.quotient(x));
  float sum[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum[k] = 0;
  const int high = (windows.height - 1) * windows.row_dilation, wide = (windows.width - 1) * windows.column_dilation;
  for (int up = 0; up <= bottom && y - (bottom - up) * windows.row_stride <= high; up += kWindows) {
    for (int back = 0; back <= right && x - (right - back) * windows.column_stride <= wide; back += kWindows) {
      P pixel[kWindows][kWindows];
      Places place[kWindows][kWindows];
      int mine[kWindows][kWindows];  // place in the window; -1: not in it
#pragma unroll
      for (int a = 0; a < kWindows; ++a) {
#pragma unroll
        for (int b = 0; b < kWindows; ++b) {
          const int row = bottom - up - a, column = right - back - b;
          const int down = y - row * windows.row_stride, along = x - column * windows.column_stride;
          const int line = static_cast<int>(steps.row_dilation.quotient(down)),
                    spot = static_cast<int>(steps.column_dilation.quotient(along));
          const bool is_there = row >= 0 && row < windows.output_rows && column >= 0 &&
                                column < windows.output_columns && down <= high && along <= wide &&
                                line * windows.row_dilation == down && spot * windows.column_dilation == along;
          mine[a][b] = is_there ? line * windows.width + spot : -1;
          if (is_there) {
            const uint32_t of =
                to.number({at.pack, static_cast<uint32_t>(column), static_cast<uint32_t>(row), at.image});
            pixel[a][b] = gradients[of];
            place[a][b] = kept[of];
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kWindows; ++a) {
#pragma unroll
        for (int b = 0; b < kWindows; ++b) {
          if (mine[a][b] < 0) continue;
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            if (place[a][b].at[k] == mine[a][b]) sum[k] += number(pixel[a][b].at[k]);
          }
        }
      }
    }
  }
  P result;
#pragma unroll
  for (int k = 0; k < kCount; ++k) result.at[k] = rounded<T>(sum[k]);
  reinterpret_cast<P*>(input_gradient)[i] = result;
}

// Images in the usual order are as many of one channel.
Image image_of(const Windows& windows, int rows, int columns) {
  const int packs = windows.channels_last ? windows.channels / full_pack(windows.number) : 1;
  return {Divisor(packs), Divisor(columns), Divisor(rows)};
}
Image input_of(const Windows& windows) { return image_of(windows, windows.rows, windows.columns); }
Image output_of(const Windows& windows) { return image_of(windows, windows.output_rows, windows.output_columns); }

uint32_t packs_of(const Windows& windows, int64_t rows, int64_t columns) {
  const int count = windows.channels_last ? full_pack(windows.number) : 1;
  return static_cast<uint32_t>(int64_t{windows.images} * windows.channels * rows * columns / count);
}

}  // namespace

int max_pool(const Windows& windows, const void* input, void* output, uint8_t* places, void* stream) {
  const uint32_t packs = packs_of(windows, windows.output_rows, windows.output_columns);
  const int count = windows.channels_last ? full_pack(windows.number) : 1;
  return with_types(windows.number, windows.channels_last, count, [&]<class T, int kCount, bool kLast>() -> int {
    if constexpr (kLast || kCount == 1) {
      const auto run =
          windows.width == 3 && windows.column_dilation == 1 ? pool_kernel<T, kCount, 3> : pool_kernel<T, kCount, 0>;
      run<<<divided(packs, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          windows, input_of(windows), output_of(windows), packs, static_cast<const T*>(input), static_cast<T*>(output),
          places);
    }
    return static_cast<int>(cudaGetLastError());
  });
}

int max_pool_backward(const Windows& windows, const void* gradient, const uint8_t* places, void* input_gradient,
                      void* stream) {
  const uint32_t packs = packs_of(windows, windows.rows, windows.columns);
  const int count = windows.channels_last ? full_pack(windows.number) : 1;
  const bool apart = windows.height <= windows.row_stride && windows.width <= windows.column_stride;
  return with_types(windows.number, windows.channels_last, count, [&]<class T, int kCount, bool kLast>() -> int {
    if constexpr (kLast || kCount == 1) {
      const auto run = apart ? pool_backward_kernel<T, kCount, 1> : pool_backward_kernel<T, kCount, 2>;
      run<<<divided(packs, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          windows, input_of(windows), output_of(windows), packs,
          Steps{Divisor(windows.row_stride), Divisor(windows.column_stride), Divisor(windows.row_dilation),
                Divisor(windows.column_dilation)},
          static_cast<const T*>(gradient), places, static_cast<T*>(input_gradient));
    }
    return static_cast<int>(cudaGetLastError());
  });
}

}  // namespace muster::image_kernels
