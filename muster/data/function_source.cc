// The sources that run functions.
#include <c10/core/ScalarType.h>

#include <iterator>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/source.h"
#include "muster/graph/aliases.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

// The function of a map or filter, registered with the worker for as long as it is open.
class RegisteredFunction {
 public:
  RegisteredFunction(const FunctionOp& op, std::shared_ptr<const ElementProgram> program, const OpenContext& context)
      : op_(op.name()), element_program_(std::move(program)), runner_(context.runner), draws_(context.draws) {
    if (!element_program_) return;
    const Program& checked = element_program_->program;
    handle_ = runner_.register_program(checked);
    const Aliases aliases(checked);
    for (const ProgramArgument& argument : checked.arguments) {
      written_.push_back(aliases.written(aliases.group(argument.value)));
    }
  }
  ~RegisteredFunction() {
    if (!handle_) return;
    try {
      runner_.deregister_program(*handle_);
    } catch (const Error& error) {
      MUSTER_LOG(warning) << name() << ": " << error.what();
    }
  }
  RegisteredFunction(const RegisteredFunction&) = delete;
  RegisteredFunction& operator=(const RegisteredFunction&) = delete;

  std::vector<at::Tensor> run(const Columns& columns) const {
    const Element element = tensors_of(columns, handle_ ? name() : op_);
    if (!handle_) {
      throw invalid_argument(
          op_, ": the dataset was empty where it was described, so its function is not known; here it has ",
          describe(specs_of(element)));
    }
    if (!fits(element)) {
      throw invalid_argument(name(), ": an element is ", describe(specs_of(element)),
                             ", but the function was traced for ", describe(expected()),
                             "; if it is the last, smaller batch, give batch drop_remainder = true");
    }
    return runner_.run(*handle_, arguments(element), {.replica = draws_});
  }

  std::string name() const { return str_cat(op_, " \"", element_program_->program.name, "\""); }

 private:
  std::vector<TensorSpec> expected() const {
    std::vector<TensorSpec> specs;
    for (const ProgramArgument& argument : element_program_->program.arguments) specs.push_back(argument.spec);
    return specs;
  }

  bool fits(const Element& element) const {
    const auto& arguments = element_program_->program.arguments;
    if (element.size() != arguments.size()) return false;
    for (size_t i = 0; i < element.size(); ++i) {
      const TensorSpec& spec = arguments[i].spec;
      if (element[i].scalar_type() != scalar_type_of(spec.dtype) || element[i].sizes() != spec.sizes) return false;
    }
    return true;
  }

  // What the function writes to it gets as a copy: the element may be part of the dataset.
  std::vector<at::Tensor> arguments(const Element& element) const {
    PlainTensors plain;
    std::vector<at::Tensor> ready;
    ready.reserve(element.size());
    for (size_t i = 0; i < element.size(); ++i) {
      at::Tensor tensor = element[i].contiguous();
      const bool offset = element_program_->compact[i] && tensor.storage_offset() != 0;
      if (written_[i] || offset) tensor = tensor.clone();
      ready.push_back(std::move(tensor));
    }
    return ready;
  }

  const char* const op_;
  const std::shared_ptr<const ElementProgram> element_program_;
  ProgramRunner& runner_;
  const uint64_t draws_;
  std::optional<ProgramHandle> handle_;
  std::vector<bool> written_;  // by argument
};

class FilterSource : public Source {
 public:
  FilterSource(const FunctionOp& op, std::shared_ptr<const ElementProgram> program, std::unique_ptr<Source> input,
               const OpenContext& context)
      : input_(std::move(input)), context_(context), function_(op, std::move(program), context) {}

  std::optional<Columns> next() override {
    while (true) {
      context_.check_open();
      std::optional<Columns> element = input_->next();
      if (!element || keeps(*element)) return element;
    }
  }
  void restart() override { input_->restart(); }

 private:
  bool keeps(const Columns& element) const {
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
  const RegisteredFunction function_;
};

}  // namespace

std::unique_ptr<Source> open_function(const FunctionOp& op, std::shared_ptr<const ElementProgram> program,
                                      std::unique_ptr<Source> input, const OpenContext& context) {
  if (op.filters) return std::make_unique<FilterSource>(op, std::move(program), std::move(input), context);
  auto function = std::make_shared<const RegisteredFunction>(op, std::move(program), context);
  auto change = [function = std::move(function)](const Columns& element) {
    std::vector<at::Tensor> made = function->run(element);
    return Columns(std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  };
  return open_change(std::move(change), context.example ? 1 : op.threads, std::move(input));
}

}  // namespace muster
