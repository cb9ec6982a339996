#include "muster/distribute/servers/ps_runner.h"

#include "muster/base/status.h"
#include "muster/distribute/servers/lost_with_server.h"
#include "muster/rpc/calls/repeatable.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr const char* kHere = "/job:chief/replica:0/task:0";

}  // namespace

PsRunner::PsRunner(PsRunnerOptions options, const PsIncarnations& incarnations)
    : options_(std::move(options)),
      incarnations_(incarnations),
      worker_({.devices = {.task = kHere}}, options_.peers.get()),
      master_(worker_, {.tasks = options_.tasks, .peers = options_.peers.get()}),
      session_(master_.create_session({.container = options_.container})) {}

std::vector<at::Tensor> PsRunner::run(const Program& program, std::vector<at::Tensor> arguments) {
  begin_at_their_memory(arguments);
  const ProgramHandle handle = master_.extend(session_, program);
  std::vector<at::Tensor> outputs;
  try {
    // A write would give a restarted parameter server a value, and then it looked like the one that it was.
    if (!repeatable(program)) incarnations_.check_alive(program);
    outputs = master_.run(session_, handle, std::move(arguments));
  } catch (const Error& error) {
    try {
      master_.release(session_, handle);
    } catch (const Error&) {
      // The first error is the one that counts.
    }
    // A restarted parameter server has no value to read.
    if (error.code() == StatusCode::kFailedPrecondition) incarnations_.check_alive(program);
    throw Error(lost_with_server(error.status()));
  }
  master_.release(session_, handle);
  return outputs;
}

}  // namespace muster
