#include "muster/runtime/ops/evaluate.h"

#include <set>

#include "muster/base/status.h"
#include "muster/runtime/executor/executor.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// What expand() makes of a tensor whose elements lie one after the other: so do those of the result, once they are
// written out, and no op that reads it lays out its own result in another way.
bool repeats_contiguous(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) once = once.narrow(dim, 0, 1);
  }
  return once.is_contiguous();
}

}  // namespace

std::optional<std::vector<Constant>> evaluate(const OpCatalog& catalog, const Program& program,
                                              const Instruction& instruction) {
  Program one{.name = "fold", .num_values = program.num_values};
  one.devices = program.devices;
  one.ops = {program.op_of(instruction)};
  std::set<ValueId> used;
  for (const Argument& argument : instruction.arguments) {
    for_each_value(argument, [&](ValueId value) { used.insert(value); });
  }
  for (const Constant& constant : program.constants) {
    if (used.contains(constant.value)) one.constants.push_back(constant);
  }
  one.instructions = {instruction};
  one.instructions[0].op = 0;
  one.instructions[0].device = 0;
  for (const auto& values : instruction.results) {
    for (ValueId value : values) {
      if (value >= 0) one.outputs.push_back(value);
    }
  }
  try {
    // Nobody waits for it, and only a small result is of any use.
    constexpr int64_t kMost = int64_t{64} << 20;
    MemoryPool::Budget budget(kMost);
    MemoryPool::Use memory({.pooled = false, .budget = &budget});
    // On the CPU, where constants live, whatever the program's devices will be.
    LocalDevices devices({.gpus = false});
    VariableStore variables;
    std::vector<Constant> results;
    for (const at::Tensor& tensor : Executor(one, devices, catalog, variables).run({})) {
      if (!tensor.defined() || !repeats_contiguous(tensor)) return std::nullopt;
      results.push_back(constant_of(tensor));
      results.back().value = one.outputs[results.size() - 1];
    }
    return results;
  } catch (const Error&) {
    return std::nullopt;  // the program will say so when it runs
  }
}

}  // namespace muster
