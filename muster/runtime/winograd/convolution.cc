#include "muster/runtime/winograd/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace muster {
namespace {

constexpr int64_t kTaps = 9;
// Each thread has its own sums for the gradient of the weights, of which one thread may have so many, and all together.
constexpr int64_t kMostChannels = 1024, kMostPairsOfChannels = 1 << 16, kMostFloatsOfSums = 1 << 24;

int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// The distance of rows of so many channels: an odd number of cache lines, since others would all go to the same few
// places of the cache.
int64_t row_of(int64_t channels) { return ((channels + kFloatsOfLine - 1) / kFloatsOfLine | 1) * kFloatsOfLine; }

// The same for planes of so many rows.
int64_t plane_of(int64_t rows, int64_t channels) { return row_of(rows * row_of(channels)); }

at::Tensor floats(int64_t number, const at::Tensor& like) { return at::empty({number}, like.options()); }

// A convolution cut into tiles, which are numbered image by image and row by row.
struct Tiling {
  int64_t images, channels, rows, columns;  // of the image
  int64_t output_channels, output_rows, output_columns;
  int64_t pad_rows, pad_columns;
  int64_t tile_rows, tile_columns, tiles, block;  // tiles that are multiplied at a time

  int64_t tiles_of_image() const { return tile_rows * tile_columns; }

  ImagePatch image_patch(float* data, int64_t tile) const {
    return patch(data, tile, channels, rows, columns, pad_rows, pad_columns, kWinogradInputs);
  }

  ImagePatch output_patch(float* data, int64_t tile) const {
    return patch(data, tile, output_channels, output_rows, output_columns, 0, 0, kWinogradOutputs);
  }

 private:
  ImagePatch patch(float* data, int64_t tile, int64_t row_of_floats, int64_t all_rows, int64_t all_columns,
                   int64_t rows_before, int64_t columns_before, int64_t size) const {
    const int64_t image = tile / tiles_of_image(), in_image = tile % tiles_of_image();
    const int64_t row = in_image / tile_columns * kWinogradOutputs - rows_before;
    const int64_t column = in_image % tile_columns * kWinogradOutputs - columns_before;
    auto within = [size](int64_t begin, int64_t all) { return std::clamp<int64_t>(all - begin, 0, size); };
    return {.image = data + image * all_rows * all_columns * row_of_floats,
            .row = row,
            .column = column,
            .row_stride = all_columns * row_of_floats,
            .column_stride = row_of_floats,
            .first_row = std::clamp<int64_t>(-row, 0, size),
            .last_row = within(row, all_rows),
            .first_column = std::clamp<int64_t>(-column, 0, size),
            .last_column = within(column, all_columns)};
  }
};

Tiling tiling(at::IntArrayRef image, const at::Tensor& weights, int64_t pad_rows, int64_t pad_columns) {
  // So that a block stays in the cache of a core with the weights, but is not so small that it does not pay to load
  // them.
  constexpr int64_t kFloatsOfBlock = 1 << 18, kLeast = 24, kMost = 192;
  Tiling tiling{.images = image[0],
                .channels = image[1],
                .rows = image[2],
                .columns = image[3],
                .output_channels = weights.size(0),
                .output_rows = image[2] + 2 * pad_rows - 2,
                .output_columns = image[3] + 2 * pad_columns - 2,
                .pad_rows = pad_rows,
                .pad_columns = pad_columns,
                .tile_rows = 0,
                .tile_columns = 0,
                .tiles = 0,
                .block = 0};
  tiling.tile_rows = rounded_up(tiling.output_rows, kWinogradOutputs) / kWinogradOutputs;
  tiling.tile_columns = rounded_up(tiling.output_columns, kWinogradOutputs) / kWinogradOutputs;
  tiling.tiles = tiling.images * tiling.tiles_of_image();
  const int64_t floats_of_tile = kWinogradPlanes * (row_of(tiling.channels) + row_of(tiling.output_channels));
  tiling.block = std::clamp(kFloatsOfBlock / floats_of_tile, kLeast, kMost);
  return tiling;
}

// Weights as factors, one row for each channel of the image (or the output: `turned`).
WinogradPlanes factors_of(const at::Tensor& weights, bool turned, const WinogradKernels& kernels, at::Tensor& memory) {
  const int64_t rows = weights.size(turned ? 0 : 1), columns = weights.size(turned ? 1 : 0);
  const int64_t row_stride = weights.stride(turned ? 0 : 1), column_stride = weights.stride(turned ? 1 : 0);
  const int64_t vectors = rounded_up(columns, kFloatsOfLine);
  const WinogradPlanes planes{memory.data_ptr<float>(), plane_of(rows, columns)};
  const at::Tensor copies = floats(kTaps * vectors * rows, weights);
  at::parallel_for(0, rows, std::max<int64_t>(4096 / columns, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = weights.const_data_ptr<float>() + row * row_stride;
      float* copy = copies.data_ptr<float>() + row * kTaps * vectors;
      for (int64_t tap = 0; tap < kTaps; ++tap) {
        const float* of_tap = from + tap / 3 * weights.stride(2) + tap % 3 * weights.stride(3);
        for (int64_t column = 0; column < columns; ++column)
          copy[tap * vectors + column] = of_tap[column * column_stride];
        std::fill(copy + tap * vectors + columns, copy + (tap + 1) * vectors, 0.0f);
      }
      kernels.weights_to_planes(copy, vectors, columns, {planes.data + row * row_of(columns), planes.stride});
    }
  });
  return planes;
}

at::Tensor memory_of_factors(int64_t rows, int64_t columns, const at::Tensor& like) {
  return floats(kWinogradPlanes * plane_of(rows, columns), like);
}

at::Tensor channels_last(const at::Tensor& image) {
  // Sizes of one leave strides open, which nobody here looks at.
  return image.contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor new_image(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

// What one thread of a backward pass has for itself.
struct Share {
  WinogradPlanes of_image, of_output, of_weights;
  float *of_bias, *of_bias_in_block;
};

// A backward pass.
struct Backward {
  const Tiling& tiling;
  const WinogradKernels& kernels;
  float *gradient, *image, *image_gradient;  // null if it is not wanted, the image if that of the weights is not
  WinogradPlanes factors;                    // for the gradient of the image
  bool clears;                               // the gradient of an image has to be set to zero first

  void add_tiles(int64_t begin, int64_t end, const Share& share) const {
    for (int64_t tile = begin; tile < end; tile += tiling.block) {
      add_block(tile, std::min(end - tile, tiling.block), share);
    }
  }

 private:
  void add_block(int64_t begin, int64_t tiles, const Share& share) const {
    const int64_t image_row = row_of(tiling.channels), output_row = row_of(tiling.output_channels);
    const int64_t image_columns = rounded_up(tiling.channels, kernels.lanes);
    const int64_t output_columns = rounded_up(tiling.output_channels, kernels.lanes);
    // A sum for each block: one of all tiles would lose a bit each time that it doubles.
    std::memset(share.of_bias_in_block, 0, sizeof(float) * output_row);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      kernels.gradient_to_planes(tiling.output_patch(gradient, begin + tile), tiling.output_channels,
                                 {share.of_output.data + tile * output_row, share.of_output.stride},
                                 share.of_bias_in_block);
    }
    for (int64_t channel = 0; channel < output_row; ++channel) {
      share.of_bias[channel] += share.of_bias_in_block[channel];
    }
    if (image != nullptr) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        kernels.image_to_planes(tiling.image_patch(image, begin + tile), tiling.channels,
                                {share.of_image.data + tile * image_row, share.of_image.stride});
      }
      for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
        kernels.multiply({share.of_image.data + plane * share.of_image.stride, 1, image_row},
                         share.of_output.data + plane * share.of_output.stride, output_row,
                         share.of_weights.data + plane * share.of_weights.stride, output_row, tiling.channels, tiles,
                         output_columns, true);
      }
    }
    if (image_gradient == nullptr) return;
    for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
      kernels.multiply({share.of_output.data + plane * share.of_output.stride, output_row, 1},
                       factors.data + plane * factors.stride, image_row,
                       share.of_image.data + plane * share.of_image.stride, image_row, tiles, tiling.output_channels,
                       image_columns, false);
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      if (clears && (begin + tile) % tiling.tiles_of_image() == 0)
        clear_image((begin + tile) / tiling.tiles_of_image());
      kernels.planes_to_image({share.of_image.data + tile * image_row, share.of_image.stride}, tiling.channels,
                              tiling.image_patch(image_gradient, begin + tile));
    }
  }

  void clear_image(int64_t number) const {
    const int64_t size = tiling.rows * tiling.columns * tiling.channels;
    std::memset(image_gradient + number * size, 0, size * sizeof(float));
  }
};

// Adds up what the threads have for themselves, and brings it back to weights.
at::Tensor weights_from(const std::vector<Share>& shares, const Tiling& tiling, const WinogradKernels& kernels,
                        const at::Tensor& like) {
  const at::Tensor weights = at::empty({tiling.output_channels, tiling.channels, 3, 3}, like.options());
  const int64_t columns = tiling.output_channels, row_stride = row_of(columns);
  const int64_t vectors = rounded_up(columns, kFloatsOfLine);
  const at::Tensor copies = floats(kTaps * vectors * tiling.channels, like);
  at::parallel_for(0, tiling.channels, std::max<int64_t>(4096 / columns, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const WinogradPlanes sums{shares[0].of_weights.data + row * row_stride, shares[0].of_weights.stride};
      for (size_t i = 1; i < shares.size(); ++i) {
        for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
          float* to = sums.data + plane * sums.stride;
          const float* from = shares[i].of_weights.data + row * row_stride + plane * sums.stride;
          for (int64_t column = 0; column < columns; ++column) to[column] += from[column];
        }
      }
      float* copy = copies.data_ptr<float>() + row * kTaps * vectors;
      kernels.planes_to_weights(sums, columns, copy, vectors);
      float* to = weights.data_ptr<float>() + row * kTaps;
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t tap = 0; tap < kTaps; ++tap)
          to[column * tiling.channels * kTaps + tap] = copy[tap * vectors + column];
      }
    }
  });
  return weights;
}

}  // namespace

const WinogradKernels* winograd_kernels() {
#if defined(__x86_64__)
  static const WinogradKernels* const kernels = [] {
    __builtin_cpu_init();
    const WinogradKernels* fastest = nullptr;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) fastest = winograd_avx2();
    if (__builtin_cpu_supports("avx512f") && winograd_avx512() != nullptr) fastest = winograd_avx512();
    return fastest;
  }();
  return kernels;
#elif defined(__aarch64__)
  return winograd_any();
#else
  return nullptr;
#endif
}

bool WinogradConvolution::fits(const at::Tensor& image, const at::Tensor& weights) const {
  if (!image.is_cpu() || !weights.is_cpu() || image.scalar_type() != at::kFloat ||
      weights.scalar_type() != at::kFloat || image.dim() != 4 || weights.dim() != 4) {
    return false;
  }
  return image.numel() > 0 && weights.numel() > 0 && weights.size(1) == image.size(1) && weights.size(2) == 3 &&
         weights.size(3) == 3 && pad_rows >= 0 && pad_columns >= 0 && image.size(2) + 2 * pad_rows >= 3 &&
         image.size(3) + 2 * pad_columns >= 3 && std::max(weights.size(0), weights.size(1)) <= kMostChannels &&
         weights.numel() / 9 <= kMostPairsOfChannels;
}

at::Tensor WinogradConvolution::forward(const at::Tensor& image, const at::Tensor& weights,
                                        const at::Tensor& bias) const {
  const Tiling tiling = muster::tiling(image.sizes(), weights, pad_rows, pad_columns);
  const at::Tensor from = channels_last(image);
  const at::Tensor output =
      new_image({tiling.images, tiling.output_channels, tiling.output_rows, tiling.output_columns}, image);
  at::Tensor memory = memory_of_factors(tiling.channels, tiling.output_channels, image);
  const WinogradPlanes factors = factors_of(weights, false, kernels, memory);

  const int64_t image_row = row_of(tiling.channels), output_row = row_of(tiling.output_channels);
  const int64_t columns = rounded_up(tiling.output_channels, kernels.lanes);
  const at::Tensor of_bias = at::zeros({output_row}, image.options());
  if (bias.defined()) of_bias.narrow(0, 0, tiling.output_channels).copy_(bias);

  const int64_t image_plane = plane_of(tiling.block, tiling.channels);
  const int64_t output_plane = plane_of(tiling.block, tiling.output_channels);
  const int64_t threads =
      std::min<int64_t>(at::get_num_threads(), rounded_up(tiling.tiles, tiling.block) / tiling.block);
  const int64_t floats_of_thread = kWinogradPlanes * (image_plane + output_plane);
  const at::Tensor workspace = floats(threads * floats_of_thread, image);
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      const WinogradPlanes of_image{workspace.data_ptr<float>() + thread * floats_of_thread, image_plane};
      const WinogradPlanes of_output{of_image.data + kWinogradPlanes * image_plane, output_plane};
      const int64_t end = tiling.tiles * (thread + 1) / threads;
      for (int64_t begin = tiling.tiles * thread / threads; begin < end; begin += tiling.block) {
        const int64_t tiles = std::min(end - begin, tiling.block);
        for (int64_t tile = 0; tile < tiles; ++tile) {
          kernels.image_to_planes(tiling.image_patch(from.data_ptr<float>(), begin + tile), tiling.channels,
                                  {of_image.data + tile * image_row, image_plane});
        }
        for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
          kernels.multiply({of_image.data + plane * image_plane, image_row, 1}, factors.data + plane * factors.stride,
                           output_row, of_output.data + plane * output_plane, output_row, tiles, tiling.channels,
                           columns, false);
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
          kernels.planes_to_output({of_output.data + tile * output_row, output_plane}, tiling.output_channels,
                                   of_bias.const_data_ptr<float>(),
                                   tiling.output_patch(output.data_ptr<float>(), begin + tile));
        }
      }
    }
  });
  return output;
}

std::array<at::Tensor, 3> WinogradConvolution::backward(const at::Tensor& gradient, const at::Tensor& image,
                                                        const at::Tensor& weights, std::array<bool, 3> wanted) const {
  const Tiling tiling = muster::tiling(image.sizes(), weights, pad_rows, pad_columns);
  const at::Tensor of_output = channels_last(gradient);
  const at::Tensor from = wanted[1] ? channels_last(image) : at::Tensor();
  std::array<at::Tensor, 3> results;
  at::Tensor memory;
  WinogradPlanes factors{};
  if (wanted[0]) {
    memory = memory_of_factors(tiling.output_channels, tiling.channels, image);
    factors = factors_of(weights, true, kernels, memory);
    results[0] = new_image(image.sizes(), image);
  }

  // Tiles of neighboring rows add to the same elements. So each thread takes whole images, or, where these are too few,
  // whole rows of tiles, of which every second share has its turn first.
  const int64_t weights_plane = wanted[1] ? plane_of(tiling.channels, tiling.output_channels) : 0;
  const int64_t threads =
      std::clamp<int64_t>(kMostFloatsOfSums / (kWinogradPlanes * weights_plane + 1), 1, at::get_num_threads());
  const bool by_images = tiling.images >= threads;
  const int64_t units = by_images ? tiling.images : tiling.images * tiling.tile_rows;
  const int64_t tiles_of_unit = tiling.tiles / units;
  const int64_t turns = by_images ? 1 : 2, pieces = std::min(units, turns * threads);
  if (wanted[0] && !by_images) results[0].zero_();

  const int64_t image_plane = plane_of(tiling.block, tiling.channels);
  const int64_t output_plane = plane_of(tiling.block, tiling.output_channels);
  const int64_t output_row = row_of(tiling.output_channels);
  const int64_t floats_of_share = kWinogradPlanes * (image_plane + output_plane + weights_plane) + 2 * output_row;
  std::vector<Share> shares((pieces + turns - 1) / turns);
  const at::Tensor workspace = floats(static_cast<int64_t>(shares.size()) * floats_of_share, image);
  for (size_t i = 0; i < shares.size(); ++i) {
    Share& share = shares[i];
    share.of_bias = workspace.data_ptr<float>() + static_cast<int64_t>(i) * floats_of_share;
    share.of_bias_in_block = share.of_bias + output_row;
    share.of_weights = {share.of_bias_in_block + output_row, weights_plane};
    share.of_image = {share.of_weights.data + kWinogradPlanes * weights_plane, image_plane};
    share.of_output = {share.of_image.data + kWinogradPlanes * image_plane, output_plane};
    std::memset(share.of_bias, 0, sizeof(float) * (2 * output_row + kWinogradPlanes * weights_plane));
  }
  const Backward pass{.tiling = tiling,
                      .kernels = kernels,
                      .gradient = of_output.data_ptr<float>(),
                      .image = wanted[1] ? from.data_ptr<float>() : nullptr,
                      .image_gradient = wanted[0] ? results[0].data_ptr<float>() : nullptr,
                      .factors = factors,
                      .clears = by_images};
  for (int64_t turn = 0; turn < turns; ++turn) {
    at::parallel_for(0, (pieces - turn + turns - 1) / turns, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t piece = i * turns + turn;
        pass.add_tiles(units * piece / pieces * tiles_of_unit, units * (piece + 1) / pieces * tiles_of_unit, shares[i]);
      }
    });
  }

  if (wanted[1]) results[1] = weights_from(shares, tiling, kernels, image);
  if (wanted[2]) {
    results[2] = at::zeros({tiling.output_channels}, image.options());
    float* sums = results[2].data_ptr<float>();
    for (const Share& share : shares) {
      for (int64_t channel = 0; channel < tiling.output_channels; ++channel) sums[channel] += share.of_bias[channel];
    }
  }
  return results;
}

}  // namespace muster
