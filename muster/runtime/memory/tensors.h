// Between libtorch's tensors and the plain data of a program.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "muster/graph/program.h"

namespace muster {

at::ScalarType scalar_type_of(DType dtype);
DType dtype_of(
    at::ScalarType type);  // throws Error{kInvalidArgument} for types that programs cannot hold (quantized, …)
TensorSpec spec_of(const at::Tensor& tensor);

// A matrix whose columns lie one after the other in memory, in place of its rows.
bool in_columns(const at::Tensor& tensor);

// The constant keeps a copy of the elements; `value` is left for the caller to set.
Constant constant_of(const at::Tensor& tensor);
at::Tensor tensor_of(const Constant& constant);

// Its elements in memory of their own. One thread copies what is not large: those that help it look out for more work
// for milliseconds after it, on cores that others need.
at::Tensor copy_of(const at::Tensor& tensor);

// Copies those that are a part of something larger: programs count elements from the start of their arguments' memory.
void begin_at_their_memory(std::vector<at::Tensor>& arguments);

// Dispatches past autograd and records nothing: what Muster itself does with tensors is never part of a user's graph.
struct [[nodiscard]] PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd{};
  c10::AutoGradMode no_gradients{false};
};

// A tensor that is elsewhere is copied; one that is not defined stays so. To a GPU it goes through pinned memory,
// without a wait: what is launched on the current stream from now on sees it there, and the old memory may be written
// at once.
void bring_to(const at::Device& device, at::Tensor& tensor);

// Brings all of them to the CPU, with one wait for what was launched on their devices' current streams before, none for
// what is launched from now on. Their memory is pinned, so they are for those who pass them on.
void bring_to_host(std::vector<at::Tensor>& tensors);

}  // namespace muster
