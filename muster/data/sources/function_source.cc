// The sources that run functions.
#include <absl/base/thread_annotations.h>
#include <absl/strings/str_join.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/ScalarType.h>

#include <iterator>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/sources/source.h"
#include "muster/graph/aliases.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Elements are in the CPU's memory, whatever device steps run on, and so is what is made of them, unless a function
// asks for a device: one element at a time is no work for a GPU.
Program on_the_cpu(Program program) {
  const int32_t cpu = program.intern_device("/device:CPU:0");
  for (ProgramArgument& argument : program.arguments) {
    if (argument.device == 0) argument.device = cpu;
  }
  for (Instruction& instruction : program.instructions) {
    if (instruction.device == 0) instruction.device = cpu;
  }
  for (Program& body : program.bodies) body = on_the_cpu(std::move(body));
  return program;
}

// A trace, registered with the worker for as long as it is open.
class RegisteredTrace {
 public:
  RegisteredTrace(std::shared_ptr<const ElementProgram> program, ProgramRunner& runner)
      : traced_(std::move(program)), runner_(runner), handle_(runner_.register_program(on_the_cpu(traced_->program))) {
    const Aliases aliases(traced_->program);
    for (const ProgramArgument& argument : traced_->program.arguments) {
      written_.push_back(aliases.written(aliases.group(argument.value)));
    }
  }
  ~RegisteredTrace() {
    try {
      runner_.deregister_program(handle_);
    } catch (const Error& error) {
      MUSTER_LOG(warning) << "program \"" << traced_->program.name << "\": " << error.what();
    }
  }
  RegisteredTrace(const RegisteredTrace&) = delete;
  RegisteredTrace& operator=(const RegisteredTrace&) = delete;

  bool takes(const Element& element) const { return traced_->takes(element); }
  std::vector<at::Tensor> run(const Element& element, uint64_t draws) const {
    return runner_.run(handle_, arguments(element), {.replica = draws});
  }

 private:
  // What the function writes to it gets as a copy: the element may be part of the dataset.
  std::vector<at::Tensor> arguments(const Element& element) const {
    PlainTensors plain;
    std::vector<at::Tensor> ready;
    ready.reserve(element.size());
    for (size_t i = 0; i < element.size(); ++i) {
      at::Tensor tensor = element[i].contiguous();
      const bool offset = traced_->compact[i] && tensor.storage_offset() != 0;
      if (written_[i] || offset) tensor = tensor.clone();
      ready.push_back(std::move(tensor));
    }
    return ready;
  }

  const std::shared_ptr<const ElementProgram> traced_;
  ProgramRunner& runner_;
  const ProgramHandle handle_;
  std::vector<bool> written_;  // by argument
};

// The function of a map or filter with the traces that its elements need. Thread-safe.
class OpenedFunction {
 public:
  OpenedFunction(const FunctionOp& op, const DatasetNode& before, const OpenContext& context)
      : traces_(op.traces),
        name_(traces_->name()),
        names_(before.names().names),
        runner_(context.runner),
        draws_(context.draws) {
    if (auto first = traces_->first(before)) {
      registered_.push_back(std::make_shared<const RegisteredTrace>(std::move(first), runner_));
    }
  }

  std::vector<at::Tensor> run(const Columns& columns) ABSL_LOCKS_EXCLUDED(mu_) {
    const Element element = tensors_of(columns, name_, names_);
    return trace_for(element)->run(element, draws_);
  }
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const RegisteredTrace> trace_for(const Element& element) ABSL_LOCKS_EXCLUDED(mu_) {
    auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> std::shared_ptr<const RegisteredTrace> {
      for (const auto& each : registered_) {
        if (each->takes(element)) return each;
      }
      return nullptr;
    };
    {
      absl::MutexLock lock(&mu_);
      if (auto there = known()) return there;
    }
    auto made = std::make_shared<const RegisteredTrace>(traces_->for_element(element), runner_);
    absl::MutexLock lock(&mu_);
    if (auto there = known()) return there;  // of another thread
    registered_.push_back(made);
    return made;
  }

  const std::shared_ptr<ElementTraces> traces_;
  const std::string name_;
  const std::vector<std::string> names_;  // of what it takes
  ProgramRunner& runner_;
  const uint64_t draws_;

  absl::Mutex mu_;
  std::vector<std::shared_ptr<const RegisteredTrace>> registered_ ABSL_GUARDED_BY(mu_);
};

class FilterSource : public Source {
 public:
  FilterSource(const FunctionOp& op, const DatasetNode& before, std::unique_ptr<Source> input,
               const OpenContext& context)
      : input_(std::move(input)), context_(context), function_(op, before, context) {}

  std::optional<Columns> next() override {
    while (true) {
      context_.check_open();
      std::optional<Columns> element = input_->next();
      if (!element || keeps(*element)) return element;
    }
  }
  void restart() override { input_->restart(); }
  int64_t drained() const override { return input_->drained(); }

 private:
  bool keeps(const Columns& element) {
    const std::vector<at::Tensor> results = function_.run(element);
    if (results.size() != 1 || !results[0].defined() || results[0].scalar_type() != at::kBool ||
        results[0].numel() != 1) {
      throw invalid_argument(function_.name(), ": the function returns ", describe(specs_of(results)),
                             ", expected one bool");
    }
    PlainTensors plain;
    return *results[0].to(at::kCPU).const_data_ptr<bool>();
  }

  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  OpenedFunction function_;
};

}  // namespace

std::unique_ptr<Source> open_function(const FunctionOp& op, const DatasetNode& before, std::unique_ptr<Source> input,
                                      const OpenContext& context) {
  if (op.filters) return std::make_unique<FilterSource>(op, before, std::move(input), context);
  auto function = std::make_shared<OpenedFunction>(op, before, context);
  auto change = [function = std::move(function), names = op.names](const Columns& element) {
    std::vector<at::Tensor> made = function->run(element);
    if (!names.empty() && made.size() != names.size()) {
      throw invalid_argument(function->name(), ": the function returns ", made.size(),
                             " tensors, expected as many as there are names: ", absl::StrJoin(names, ", "));
    }
    return Columns(std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  };
  return open_change(std::move(change), op.parallel, std::move(input), context);
}

}  // namespace muster
