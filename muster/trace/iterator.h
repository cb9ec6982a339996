#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "muster/graph/program.h"
#include "muster/trace/leaves.h"

namespace muster {

// A sequence of examples, as an argument of a traced function: every run of `next()` takes the next element. The
// sequence itself is at the worker that runs the function, under a number; the same function runs with any sequence
// whose elements look alike.
//   auto step = muster::function([&](muster::Iterator& it) { auto [x, y] = it.next(); … });
struct Iterator {
  at::Tensor number{};           // int64, one element
  std::vector<int64_t> specs{};  // of an element: see specs_as_numbers()
  KeptAlive source{};            // closed with the last copy, if it belongs to this process

  // Inside a traced function the element has N tensors. Throws Error{kOutOfRange} at the end of the sequence.
  template <size_t N = 2>
  std::array<at::Tensor, N> next() {
    std::vector<at::Tensor> element = next_tensors(N);
    std::array<at::Tensor, N> tensors;
    for (size_t i = 0; i < N; ++i) tensors[i] = std::move(element[i]);
    return tensors;
  }

  // Error{kInvalidArgument} if an element has not `count` tensors.
  std::vector<at::Tensor> next_tensors(size_t count);
};

// Per tensor its type, the number of its sizes, its sizes: as muster::next wants it.
std::vector<int64_t> specs_as_numbers(const std::vector<TensorSpec>& specs);

}  // namespace muster
