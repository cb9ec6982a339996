#include "worker_calls.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "muster/graph/op_table.h"
#include "muster/graph/program.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/tuning/autotuner.h"
#include "muster/runtime/worker/local_worker.h"
#include "operands.h"

namespace muster::testing_support {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_given_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

std::optional<Argument> plain(const c10::IValue& value) {
  if (value.isNone()) return Argument{None{}};
  if (value.isTensor()) return Argument{Undefined{}};
  if (value.isInt()) return Argument{value.toInt()};
  if (value.isDouble()) return Argument{value.toDouble()};
  if (value.isBool()) return Argument{value.toBool()};
  ArgumentList list;
  if (value.isIntList()) {
    for (int64_t number : value.toIntVector()) list.push_back({number});
  } else if (value.isBoolList()) {
    for (bool answer : value.toBoolList()) list.push_back({answer});
  } else {
    return std::nullopt;
  }
  return Argument{std::move(list)};
}

// One instruction with what is on the stack, whose tensors are arguments of any size. None if it cannot be said so.
std::optional<Program> program_of(const c10::OperatorHandle& op, const Stack& stack) {
  Program program;
  program.name = "hostile";
  program.intern_device("");
  Instruction instruction{.op = program.intern_op(qualified_name(op.operator_name()), c10::str(op.schema()))};
  for (const c10::IValue& value : stack) {
    if (is_given_tensor(value)) {
      program.arguments.push_back({.value = program.new_value(), .any = true});
      instruction.arguments.push_back({ValueRef{program.arguments.back().value}});
    } else if (std::optional<Argument> argument = plain(value)) {
      instruction.arguments.push_back(std::move(*argument));
    } else {
      return std::nullopt;
    }
  }
  for (size_t i = 0; i < op.schema().returns().size(); ++i) {
    instruction.results.push_back({program.new_value()});
    program.outputs.push_back(instruction.results.back()[0]);
  }
  program.instructions.push_back(std::move(instruction));
  return program;
}

// Those of `wanted`, or where there is none of `usual`, that the program of `usual` takes.
std::vector<at::Tensor> tensors_of(const Stack& usual, const Stack& wanted) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < usual.size(); ++i) {
    if (is_given_tensor(usual[i])) tensors.push_back((is_given_tensor(wanted[i]) ? wanted[i] : usual[i]).toTensor());
  }
  return tensors;
}

// A tuning file in which `kernel` is the answer to all questions about honest calls.
class ToldFile {
 public:
  ToldFile(TuningTable table, const std::string& kernel)
      : path_(str_cat(std::filesystem::temp_directory_path().string(), "/hostile-ops-", getpid())) {
    for (auto& [key, choice] : table) choice.winner = kernel;
    std::ofstream(path_) << tuning_text(table);
  }
  ~ToldFile() { std::filesystem::remove(path_); }
  ToldFile(const ToldFile&) = delete;
  ToldFile& operator=(const ToldFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

class WorkerCalls {
 public:
  WorkerCalls(LocalWorker& worker, const c10::OperatorHandle& op, std::string kernel, const BeforeCall& before,
              const std::function<void()>& accepted)
      : worker_(worker), op_(op), kernel_(std::move(kernel)), before_(before), accepted_(accepted) {}

  // A program with the operands of the first, called with the tensors of each. Returns whether it could be registered.
  bool run(const Stack& first, const std::vector<Stack>& all) {
    const std::optional<Program> program = program_of(op_, first);
    if (!program) return false;
    try {
      const ProgramHandle handle = worker_.register_program(*program);
      for (const Stack& stack : all) call(handle, first, stack);
      worker_.deregister_program(handle);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

 private:
  void call(ProgramHandle handle, const Stack& first, const Stack& stack) {
    before_(kernel_, stack);
    try {
      worker_.run(handle, tensors_of(first, stack));
      accepted_();
    } catch (const std::exception&) {
      // Refused, as it should be.
    }
  }

  LocalWorker& worker_;
  const c10::OperatorHandle& op_;
  const std::string kernel_;
  const BeforeCall& before_;
  const std::function<void()>& accepted_;
};

}  // namespace

bool has_kernels_to_choose(const std::string& op) {
  const ImageKernels* kernels = form_of(op).images;
  return kernels != nullptr && !kernels->follows_on_gpus;
}

void call_in_worker(const c10::OperatorHandle& op, const std::vector<Stack>& honest, uint64_t seed, int64_t calls,
                    const BeforeCall& before, const std::function<void()>& accepted) {
  constexpr int64_t kOfOneProgram = 4;
  TuningTable known;
  for (const char* kernel : {"", "channels_last", "native", "patches", "winograd"}) {
    std::optional<ToldFile> told;
    if (!known.empty()) told.emplace(known, kernel);
    LocalWorkerOptions options{.devices = {.gpus = false}};
    if (told) options.tuning = {TuningMode::kPinned, told->path()};
    LocalWorker worker(std::move(options));
    WorkerCalls made(worker, op, kernel, before, accepted);
    for (const Stack& stack : honest) made.run(stack, {stack});
    if (known.empty()) known = worker.tuner()->all();

    Operands operands(op.schema(), seed, honest);
    for (int64_t i = 0; i < calls; i += kOfOneProgram) {
      // The numbers of an honest call and the tensors of others; in the end, the other's numbers, too.
      const Stack& first = honest[static_cast<size_t>(i / kOfOneProgram) % honest.size()];
      std::vector<Stack> all{first};
      for (int64_t j = 1; j < kOfOneProgram; ++j) {
        try {
          all.push_back(operands.make());
        } catch (const std::exception&) {
          // There is no such tensor.
        }
      }
      made.run(first, all);
      for (size_t j = 1; j < all.size(); ++j) made.run(all[j], {all[j], first});
    }
  }
}

}  // namespace muster::testing_support
