// What the kernels of image_kernels.h have in common. Included by them alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "muster/runtime/gpu/image_kernels.h"

namespace muster::image_kernels {
namespace {

constexpr int kThreads = 256;  // of a block

// As many numbers as a thread loads and stores at a time.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

__device__ float number(float x) { return x; }
__device__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T rounded(float x);
template <>
__device__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Divides numbers below 2^31 by multiplying.
struct Divisor {
  uint32_t value = 1, factor = 1, shift = 0;

  Divisor() = default;
  __host__ explicit Divisor(uint32_t by) : value(by) {
    while (shift < 31 && (1U << shift) < by) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by)) / by + 1);
  }
  __device__ uint32_t quotient(uint32_t of) const { return (__umulhi(of, factor) + of) >> shift; }
  // Leaves the quotient, and returns what is left over.
  __device__ uint32_t divide(uint32_t& number) const {
    const uint32_t whole = quotient(number), rest = number - whole * value;
    number = whole;
    return rest;
  }
};

inline uint32_t divided(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

inline int full_pack(Number number) { return number == Number::kFloat ? 4 : 8; }

// Calls `run.operator()<T, kCount, kLast>()` with the kernels' types for the shape.
template <class Run>
int with_types(Number number, bool channels_last, int count, const Run& run) {
  if (number == Number::kFloat) {
    if (channels_last) return run.template operator()<float, 4, true>();
    return count == 1 ? run.template operator()<float, 1, false>() : run.template operator()<float, 4, false>();
  }
  if (channels_last) return run.template operator()<__nv_bfloat16, 8, true>();
  return count == 1 ? run.template operator()<__nv_bfloat16, 1, false>()
                    : run.template operator()<__nv_bfloat16, 8, false>();
}

}  // namespace
}  // namespace muster::image_kernels
