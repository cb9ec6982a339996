// What the fuzzer does with a program from a stranger, all the way to a run. Not part of the library.
#pragma once

#include <ATen/ops/zeros.h>
#include <absl/time/time.h>

#include <string_view>

#include "muster/base/deadline_timer.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::testing_support {

// Parser, checker, catalog, passes, placer, plan, and a run of a tenth of a second with little memory. Whatever the
// bytes say, nothing but an Error comes of it. Returns whether there was a program that could be registered.
inline bool run_program(std::string_view bytes) {
  static LocalWorker& worker = *new LocalWorker(
      {.devices = {.gpus = false},
       .limits =
           {.instructions = 200, .values = 10'000, .bodies = 20, .constant_bytes = 1 << 20, .tensor_bytes = 1 << 20},
       .run_memory = 64 << 20});
  static DeadlineTimer& timer = *new DeadlineTimer;
  LogCapture quiet;
  ProgramHandle handle;
  std::vector<at::Tensor> arguments;
  try {
    const Program program = parse_program(bytes);
    handle = worker.register_program(program);
    for (const ProgramArgument& argument : program.arguments) {
      arguments.push_back(at::zeros(argument.spec.sizes, scalar_type_of(argument.spec.dtype)));
    }
    for (const VariableRef& variable : program.variables) {
      auto cell = worker.store().find(variable.name);
      cell->assign(at::zeros(variable.spec.sizes, scalar_type_of(variable.spec.dtype)));
    }
  } catch (const Error&) {
    return false;
  }
  Cancellation cancellation;
  {
    const DeadlineTimer::Alarm alarm = timer.after(absl::Milliseconds(100), [&] { cancellation.cancel(); });
    try {
      worker.run(handle, std::move(arguments), {.cancellation = &cancellation});
    } catch (const Error&) {
      // As a stranger's program may.
    }
  }
  worker.deregister_program(handle);
  worker.reset({""});
  return true;
}

}  // namespace muster::testing_support
