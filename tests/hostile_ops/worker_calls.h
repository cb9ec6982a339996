// The same calls through a worker, which runs some ops by other kernels than those that were recorded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>
#include <vector>

#include "honest_calls.h"

namespace muster::testing_support {

// Whether a worker measures which kernel is fastest for this op.
bool has_kernels_to_choose(const std::string& op);

// What of one op is called how: its kernel is told first.
using BeforeCall = std::function<void(const std::string& kernel, const std::vector<c10::IValue>& stack)>;

// Registers programs of this one op, whose tensors may have any size, runs each with what an honest program gives it,
// so that the worker makes its choice, and then with other operands, `calls` times per kernel: with the one that a
// worker with the usual options measures, and with each that there is. An op that does not survive takes the process
// along. Makes threads, so nobody may fork afterwards.
void call_in_worker(const c10::OperatorHandle& op, const std::vector<std::vector<c10::IValue>>& honest, uint64_t seed,
                    int64_t calls, const BeforeCall& before, const std::function<void()>& accepted);

}  // namespace muster::testing_support
