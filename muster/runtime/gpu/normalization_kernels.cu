#include <algorithm>

#include "muster/runtime/gpu/image_kernels.cuh"

namespace muster::image_kernels {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMostLanes = 32;  // threads side by side in a row of channels
constexpr int kMergers = 128;   // threads that merge what blocks have found of a channel
constexpr int kMergedChannels = 8;
constexpr int kBlocks = 3;  // of kThreads that a multiprocessor runs at a time

// Packs of a tensor that a thread loads before it uses the first: 80 registers have room for that.
template <int kCount>
constexpr uint32_t kAtOnce = kCount == 1 ? 4 : 2;

// How a tensor is divided among blocks: blockIdx.y says which channels, and those with the same channels take turns
// with their items. An item is a row of channels if these are last, otherwise a pack of one channel.
struct Division {
  uint32_t items = 0;
  uint32_t channels = 0;
  Divisor packs{};    // of a row if channels are last, otherwise of a channel in one image
  int log_lanes = 0;  // 0 unless channels are last
};

// A thread's part of it.
template <bool kLast>
struct Place {
  uint32_t item, step;
  uint32_t column;  // pack of a row, or channel

  __device__ explicit Place(const Division& division) {
    const uint32_t lanes = 1U << division.log_lanes, rows = kThreads >> division.log_lanes;
    column = blockIdx.y * lanes + (threadIdx.x & (lanes - 1));
    step = gridDim.x * rows;
    item = blockIdx.x * rows + (threadIdx.x >> division.log_lanes);
    if (kLast && column >= division.packs.value) item = division.items;  // has nothing to do
  }
  __device__ bool is_idle(const Division& division) const { return item >= division.items; }

  __device__ uint32_t pack(const Division& division, uint32_t of_item) const {
    if (kLast) return of_item * division.packs.value + column;
    uint32_t image = of_item;
    const uint32_t rest = division.packs.divide(image);
    return (image * division.channels + column) * division.packs.value + rest;
  }

  // Calls `use(packs, count)` with the numbers of up to kCount packs. `backwards`: from the last one, since the pass
  // before has left that in the cache.
  template <uint32_t kCount, class Use>
  __device__ void for_each_batch(const Division& division, bool backwards, const Use& use) const {
    for (uint32_t i = item; i < division.items; i += kCount * step) {
      uint32_t packs[kCount];
      bool is_there[kCount];
#pragma unroll
      for (uint32_t j = 0; j < kCount; ++j) {
        const uint32_t of_item = i + j * step;
        is_there[j] = of_item < division.items;
        packs[j] = is_there[j] ? pack(division, backwards ? division.items - 1 - of_item : of_item) : 0;
      }
      use(packs, is_there);
    }
  }
};

// Loads of a batch, all under way before the first is used.
template <class P, uint32_t kCount>
__device__ void load(P (&to)[kCount], const P* from, const uint32_t (&packs)[kCount], const bool (&is_there)[kCount]) {
#pragma unroll
  for (uint32_t j = 0; j < kCount; ++j) {
    if (is_there[j]) to[j] = from[packs[j]];
  }
}

// Of a set of numbers: how many, their mean, and the sum of the squares of their distances from it.
struct Moments {
  float count, mean, squares;

  __device__ void merge(const Moments& other) {
    if (other.count == 0) return;
    const float delta = other.mean - mean, share = other.count / (count + other.count);
    mean += delta * share;
    squares += other.squares + delta * delta * count * share;
    count += other.count;
  }
};

__device__ Moments from_lane(const Moments& mine, int offset) {
  return {__shfl_xor_sync(~0U, mine.count, offset), __shfl_xor_sync(~0U, mine.mean, offset),
          __shfl_xor_sync(~0U, mine.squares, offset)};
}

struct Sums {
  float first, second;
  __device__ void merge(const Sums& other) {
    first += other.first;
    second += other.second;
  }
};

__device__ Sums from_lane(const Sums& mine, int offset) {
  return {__shfl_xor_sync(~0U, mine.first, offset), __shfl_xor_sync(~0U, mine.second, offset)};
}

// Merges what the threads of a block have found, each for kCount channels side by side. `keep` gets the number of a
// channel among those of the block, and what was found of it.
template <int kCount, class Found, class Keep>
__device__ void merge_block(Found (&found)[kCount], int log_lanes, const Keep& keep) {
  __shared__ Found of_warps[kWarps][kMostLanes * kCount];
  const int lanes = 1 << log_lanes;
  for (int offset = 16; offset >= lanes; offset >>= 1) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) found[k].merge(from_lane(found[k], offset));
  }
  const int lane = threadIdx.x & 31;
  if (lane < lanes) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) of_warps[threadIdx.x >> 5][lane * kCount + k] = found[k];
  }
  __syncthreads();
  for (int channel = threadIdx.x; channel < lanes * kCount; channel += kThreads) {
    Found all = of_warps[0][channel];
    for (int warp = 1; warp < kWarps; ++warp) all.merge(of_warps[warp][channel]);
    keep(channel, all);
  }
}

// The same for what blocks have found of a channel, by kMergedChannels x kMergers threads; true for the one that has
// the result.
template <class Found>
__device__ bool merge_blocks(const Found* partial, uint32_t channel, uint32_t channels, uint32_t blocks, Found& found) {
  constexpr int kBatch = 4;  // loads under way
  __shared__ Found all[kMergers][kMergedChannels];
  for (uint32_t i = threadIdx.y; i < blocks && channel < channels; i += kBatch * kMergers) {
    Found batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const uint32_t block = i + j * kMergers;
      batch[j] = block < blocks ? partial[block * channels + channel] : Found{};
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) found.merge(batch[j]);
  }
  all[threadIdx.y][threadIdx.x] = found;
  __syncthreads();
  for (int half = kMergers / 2; half > 0; half /= 2) {
    if (threadIdx.y < half) all[threadIdx.y][threadIdx.x].merge(all[threadIdx.y + half][threadIdx.x]);
    __syncthreads();
  }
  found = all[0][threadIdx.x];
  return threadIdx.y == 0;
}

template <class T, int kCount, bool kLast>
__global__ void __launch_bounds__(kThreads) find_moments(Division division, const T* input, Moments* partial) {
  constexpr int kFound = kLast ? kCount : 1;
  using P = Pack<T, kCount>;
  const P* packs = reinterpret_cast<const P*>(input);
  const Place<kLast> place(division);
  // Sums of differences from a number of the channel itself: they are small even where all numbers are large.
  float shift[kFound], sum[kFound], squares[kFound];
  float count = 0;
  const bool any = !place.is_idle(division);
  P first;
  if (any) first = packs[place.pack(division, place.item)];
#pragma unroll
  for (int k = 0; k < kFound; ++k) {
    shift[k] = any ? number(first.at[k]) : 0;
    sum[k] = squares[k] = 0;
  }
  constexpr uint32_t kBatch = 4;
  place.template for_each_batch<kBatch>(division, false,
                                        [&](const uint32_t(&numbers)[kBatch], const bool(&is_there)[kBatch]) {
                                          P batch[kBatch];
                                          load(batch, packs, numbers, is_there);
#pragma unroll
                                          for (uint32_t j = 0; j < kBatch; ++j) {
                                            if (!is_there[j]) continue;
                                            count += kCount / kFound;
#pragma unroll
                                            for (int k = 0; k < kCount; ++k) {
                                              const int to = kLast ? k : 0;
                                              const float difference = number(batch[j].at[k]) - shift[to];
                                              sum[to] += difference;
                                              squares[to] = fmaf(difference, difference, squares[to]);
                                            }
                                          }
                                        });
  Moments found[kFound];
#pragma unroll
  for (int k = 0; k < kFound; ++k) {
    const float mean = any ? sum[k] / count : 0, rest = squares[k] - sum[k] * mean;
    found[k] = {count, shift[k] + mean, rest < 0 ? 0 : rest};
  }
  const uint32_t begin = blockIdx.y * (kFound << division.log_lanes);
  merge_block(found, division.log_lanes, [&](int channel, const Moments& all) {
    if (begin + channel < division.channels) partial[blockIdx.x * division.channels + begin + channel] = all;
  });
}

struct Statistics {
  float *mean, *invstd, *running_mean, *running_var;
  float momentum, epsilon;
};

__global__ void __launch_bounds__(kMergers * kMergedChannels)
    finish_moments(uint32_t channels, uint32_t blocks, const Moments* partial, Statistics statistics) {
  const uint32_t channel = blockIdx.x * kMergedChannels + threadIdx.x;
  Moments all{};
  if (!merge_blocks(partial, channel, channels, blocks, all) || channel >= channels) return;
  statistics.mean[channel] = all.mean;
  statistics.invstd[channel] = rsqrtf(all.squares / all.count + statistics.epsilon);
  const float momentum = statistics.momentum;
  if (statistics.running_mean != nullptr) {
    statistics.running_mean[channel] = (1 - momentum) * statistics.running_mean[channel] + momentum * all.mean;
  }
  if (statistics.running_var != nullptr) {
    const float variance = all.squares / (all.count - 1);
    statistics.running_var[channel] = (1 - momentum) * statistics.running_var[channel] + momentum * variance;
  }
}

template <class T, int kCount, bool kLast>
__global__ void __launch_bounds__(kThreads, kBlocks) apply_normalization(Division division, Normalization call) {
  constexpr int kFound = kLast ? kCount : 1;
  constexpr uint32_t kBatch = kAtOnce<kCount>;
  using P = Pack<T, kCount>;
  const P *inputs = static_cast<const P*>(call.input), *others = static_cast<const P*>(call.other);
  P* outputs = static_cast<P*>(call.output);
  const Place<kLast> place(division);
  if (place.is_idle(division)) return;
  float mean[kFound], scale[kFound], bias[kFound];
#pragma unroll
  for (int k = 0; k < kFound; ++k) {
    const uint32_t channel = place.column * kFound + k;
    mean[k] = call.mean[channel];
    scale[k] = call.invstd[channel] * (call.weight == nullptr ? 1 : call.weight[channel]);
    bias[k] = call.bias == nullptr ? 0 : call.bias[channel];
  }
  place.template for_each_batch<kBatch>(division, true,
                                        [&](const uint32_t(&packs)[kBatch], const bool(&is_there)[kBatch]) {
                                          P input[kBatch], other[kBatch];
                                          load(input, inputs, packs, is_there);
                                          if (others != nullptr) load(other, others, packs, is_there);
#pragma unroll
                                          for (uint32_t j = 0; j < kBatch; ++j) {
                                            if (!is_there[j]) continue;
                                            P output;
                                            uint32_t positive = 0;
#pragma unroll
                                            for (int k = 0; k < kCount; ++k) {
                                              const int of = kLast ? k : 0;
                                              float y = fmaf(number(input[j].at[k]) - mean[of], scale[of], bias[of]);
                                              if (others != nullptr) y += number(other[j].at[k]);
                                              output.at[k] = rounded<T>(y);
                                              if (call.relu) {
                                                // Whatever is not a number stays what it is, and lets gradients pass.
                                                const bool passes = !(number(output.at[k]) <= 0);
                                                if (!passes) output.at[k] = rounded<T>(0);
                                                positive |= static_cast<uint32_t>(passes) << k;
                                              }
                                            }
                                            outputs[packs[j]] = output;
                                            if (call.positive != nullptr)
                                              call.positive[packs[j]] = static_cast<uint8_t>(positive);
                                          }
                                        });
}

// Gradients of what batch norm has made.
template <class T, int kCount, bool kMore, uint32_t kBatch>
struct Gradients {
  using P = Pack<T, kCount>;
  P gradient[kBatch], more[kMore ? kBatch : 1];
  uint8_t positive[kBatch];

  __device__ void load_all(const P* gradients, const P* mores, const uint8_t* positives,
                           const uint32_t (&packs)[kBatch], const bool (&is_there)[kBatch]) {
    load(gradient, gradients, packs, is_there);
    if constexpr (kMore) load(more, mores, packs, is_there);
    if (positives != nullptr) load(positive, positives, packs, is_there);
  }
  // Rounded, as it is where it is kept.
  __device__ P at(uint32_t j, bool has_positive) const {
    P result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.at[k] = gradient[j].at[k];
      if constexpr (kMore) result.at[k] = rounded<T>(number(gradient[j].at[k]) + number(more[j].at[k]));
      if (has_positive && (positive[j] >> k & 1) == 0) result.at[k] = rounded<T>(0);
    }
    return result;
  }
};

template <class T, int kCount, bool kLast, bool kMore>
__global__ void __launch_bounds__(kThreads, kBlocks)
    sum_gradients(Division division, NormalizationGradient call, Sums* partial) {
  constexpr int kFound = kLast ? kCount : 1;
  constexpr uint32_t kBatch = kAtOnce<kCount>;
  using P = Pack<T, kCount>;
  const P *gradients = static_cast<const P*>(call.gradient), *mores = static_cast<const P*>(call.more),
          *inputs = static_cast<const P*>(call.input);
  P* kept = static_cast<P*>(call.kept);
  const Place<kLast> place(division);
  Sums sums[kFound];
  float mean[kFound];
#pragma unroll
  for (int k = 0; k < kFound; ++k) {
    sums[k] = {0, 0};
    mean[k] = place.is_idle(division) ? 0 : call.mean[place.column * kFound + k];
  }
  place.template for_each_batch<kBatch>(
      division, false, [&](const uint32_t(&packs)[kBatch], const bool(&is_there)[kBatch]) {
        P input[kBatch];
        Gradients<T, kCount, kMore, kBatch> behind;
        load(input, inputs, packs, is_there);
        behind.load_all(gradients, mores, call.positive, packs, is_there);
#pragma unroll
        for (uint32_t j = 0; j < kBatch; ++j) {
          if (!is_there[j]) continue;
          const P passed = behind.at(j, call.positive != nullptr);
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            const int to = kLast ? k : 0;
            const float gradient = number(passed.at[k]);
            sums[to].first += gradient;
            sums[to].second = fmaf(gradient, number(input[j].at[k]) - mean[to], sums[to].second);
          }
          if (kept != nullptr) kept[packs[j]] = passed;
        }
      });
  const uint32_t begin = blockIdx.y * (kFound << division.log_lanes);
  merge_block(sums, division.log_lanes, [&](int channel, const Sums& all) {
    if (begin + channel < division.channels) partial[blockIdx.x * division.channels + begin + channel] = all;
  });
}

// The gradient of an input is slope * gradient + tilt * input + rest.
struct Line {
  float slope, tilt, rest;
};

__global__ void __launch_bounds__(kMergers * kMergedChannels)
    finish_sums(uint32_t channels, uint32_t blocks, float count, const Sums* partial, Line* lines,
                NormalizationGradient call) {
  const uint32_t channel = blockIdx.x * kMergedChannels + threadIdx.x;
  Sums all{};
  float invstd = 0, weight = 1, mean = 0;
  if (channel < channels) {
    invstd = call.invstd[channel];
    mean = call.mean[channel];
    if (call.weight != nullptr) weight = call.weight[channel];
  }
  if (!merge_blocks(partial, channel, channels, blocks, all) || channel >= channels) return;
  if (call.weight_gradient != nullptr) call.weight_gradient[channel] = all.second * invstd;
  if (call.bias_gradient != nullptr) call.bias_gradient[channel] = all.first;
  const float slope = invstd * weight, tilt = -slope * invstd * invstd * (all.second / count);
  lines[channel] = {slope, tilt, -fmaf(slope, all.first / count, tilt * mean)};
}

template <class T, int kCount, bool kLast, bool kMore>
__global__ void __launch_bounds__(kThreads, kBlocks)
    apply_gradients(Division division, NormalizationGradient call, const Line* lines) {
  constexpr int kFound = kLast ? kCount : 1;
  constexpr uint32_t kBatch = kAtOnce<kCount>;
  using P = Pack<T, kCount>;
  // What was kept is the sum already, behind relu.
  const bool is_kept = call.kept != nullptr;
  const P *gradients = static_cast<const P*>(is_kept ? call.kept : call.gradient),
          *mores = static_cast<const P*>(is_kept ? nullptr : call.more), *inputs = static_cast<const P*>(call.input);
  const uint8_t* positives = is_kept ? nullptr : call.positive;
  P* outputs = static_cast<P*>(call.input_gradient);
  const Place<kLast> place(division);
  if (place.is_idle(division)) return;
  Line line[kFound];
#pragma unroll
  for (int k = 0; k < kFound; ++k) line[k] = lines[place.column * kFound + k];
  place.template for_each_batch<kBatch>(
      division, true, [&](const uint32_t(&packs)[kBatch], const bool(&is_there)[kBatch]) {
        P input[kBatch];
        Gradients<T, kCount, kMore, kBatch> behind;
        load(input, inputs, packs, is_there);
        behind.load_all(gradients, mores, positives, packs, is_there);
#pragma unroll
        for (uint32_t j = 0; j < kBatch; ++j) {
          if (!is_there[j]) continue;
          const P gradient = behind.at(j, positives != nullptr);
          P output;
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            const Line& of = line[kLast ? k : 0];
            output.at[k] =
                rounded<T>(fmaf(of.slope, number(gradient.at[k]), fmaf(of.tilt, number(input[j].at[k]), of.rest)));
          }
          outputs[packs[j]] = output;
        }
      });
}

// On the host.

// The multiprocessors of the device that is current.
int processors() {
  int device = 0, count = 1;
  if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

struct Launch {
  Division division{};
  dim3 grid{};
};

// As many blocks as run at a time, unless their threads had less than a batch each.
Launch launch_for(const Shape& shape) {
  const uint32_t count = numbers_at_a_time(shape);
  Launch launch;
  Division& division = launch.division;
  division.channels = static_cast<uint32_t>(shape.channels);
  uint32_t tiles = division.channels;
  if (shape.channels_last) {
    division.packs = Divisor(division.channels / count);
    division.items = static_cast<uint32_t>(shape.images * shape.pixels);
    while ((1U << division.log_lanes) < std::min<uint32_t>(division.packs.value, kMostLanes)) ++division.log_lanes;
    tiles = divided(division.packs.value, 1U << division.log_lanes);
  } else {
    division.packs = Divisor(static_cast<uint32_t>(shape.pixels) / count);
    division.items = static_cast<uint32_t>(shape.images) * division.packs.value;
  }
  const uint32_t most = divided(division.items, kAtOnce<8> * (kThreads >> division.log_lanes));
  // Those with one channel each need fewer registers. A few blocks more than run at a time would take as long as twice
  // as many.
  const uint32_t at_a_time = processors() * (shape.channels_last ? kBlocks : kBlocks + 1);
  launch.grid = dim3(std::max(1U, std::min(most, at_a_time / tiles)), tiles);
  return launch;
}

dim3 mergers(const Shape& shape) { return dim3(divided(static_cast<uint32_t>(shape.channels), kMergedChannels)); }

}  // namespace

int numbers_at_a_time(const Shape& shape) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1, kMostTiles = 65535;
  const int count = full_pack(shape.number);
  if (shape.images < 1 || shape.channels < 1 || shape.pixels < 1 || shape.channels > kMostTiles) return 0;
  if (shape.images > kMost || shape.pixels > kMost || shape.images * shape.pixels > kMost / shape.channels) return 0;
  if (shape.channels_last) return shape.channels % count == 0 ? count : 0;
  return shape.pixels % count == 0 ? count : 1;
}

bool run_on(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
}

int64_t workspace(const Shape& shape) {
  const int64_t partial = static_cast<int64_t>(launch_for(shape).grid.x) * shape.channels * (sizeof(Moments) / 4);
  return (partial + 3) / 4 * 4 + shape.channels * static_cast<int64_t>(sizeof(Line) / 4);
}

int normalize(const Shape& shape, const Normalization& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Launch launch = launch_for(shape);
  auto* partial = reinterpret_cast<Moments*>(call.workspace);
  return with_types(
      shape.number, shape.channels_last, numbers_at_a_time(shape), [&]<class T, int kCount, bool kLast>() -> int {
        find_moments<T, kCount, kLast>
            <<<launch.grid, kThreads, 0, on>>>(launch.division, static_cast<const T*>(call.input), partial);
        finish_moments<<<mergers(shape), dim3(kMergedChannels, kMergers), 0, on>>>(
            launch.division.channels, launch.grid.x, partial,
            Statistics{call.mean, call.invstd, call.running_mean, call.running_var, call.momentum, call.epsilon});
        apply_normalization<T, kCount, kLast><<<launch.grid, kThreads, 0, on>>>(launch.division, call);
        return static_cast<int>(cudaGetLastError());
      });
}

int normalize_backward(const Shape& shape, const NormalizationGradient& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Launch launch = launch_for(shape);
  auto* partial = reinterpret_cast<Sums*>(call.workspace);
  auto* lines = reinterpret_cast<Line*>(call.workspace + workspace(shape) - shape.channels * (sizeof(Line) / 4));
  const auto count = static_cast<float>(shape.images * shape.pixels);
  return with_types(
      shape.number, shape.channels_last, numbers_at_a_time(shape), [&]<class T, int kCount, bool kLast>() -> int {
        const auto sum =
            call.more == nullptr ? sum_gradients<T, kCount, kLast, false> : sum_gradients<T, kCount, kLast, true>;
        sum<<<launch.grid, kThreads, 0, on>>>(launch.division, call, partial);
        finish_sums<<<mergers(shape), dim3(kMergedChannels, kMergers), 0, on>>>(launch.division.channels, launch.grid.x,
                                                                                count, partial, lines, call);
        if (call.input_gradient != nullptr) {
          // What was kept is their sum.
          const auto apply = call.more == nullptr || call.kept != nullptr ? apply_gradients<T, kCount, kLast, false>
                                                                          : apply_gradients<T, kCount, kLast, true>;
          apply<<<launch.grid, kThreads, 0, on>>>(launch.division, call, lines);
        }
        return static_cast<int>(cudaGetLastError());
      });
}

}  // namespace muster::image_kernels
