#include "muster/trace/tracer/dispatcher_hook.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "muster/base/status.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {

// Tracer's door for the dispatcher.
class DispatcherHook {
 public:
  static void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey);
    Tracer* tracer = Tracer::current();
    if (tracer == nullptr) {
      Untraced untraced;
      op.redispatchBoxed(below, stack);
    } else if (draws_without_generator(op)) {
      op.redispatchBoxed(below, stack);  // still traced: what it does inside is recorded instead
    } else {
      tracer->record(op, below, *stack);
    }
  }

  // One of kReaders.
  static void on_reader(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (const Tracer* tracer = Tracer::current()) check_what_it_reads(*tracer, op, *stack);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWatchKey), stack);
  }

  // Made of other ops, which get numbers or sizes that libtorch takes out of the memory of a tensor.
  struct Reader {
    const char* op;
    std::vector<size_t> read;  // operands
  };
  static const std::vector<Reader>& readers() {
    static const auto& all = *new std::vector<Reader>{{"ctc_loss.Tensor", {2, 3}},
                                                      {"tensor_split.tensor_indices_or_sections", {1}},
                                                      {"_pad_packed_sequence", {1}},
                                                      {"lstm.data", {1}},
                                                      {"gru.data", {1}},
                                                      {"rnn_tanh.data", {1}},
                                                      {"rnn_relu.data", {1}}};
    return all;
  }

 private:
  static void check_what_it_reads(const Tracer& tracer, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const std::string name = qualified_name(op.operator_name());
    const size_t first = stack.size() - op.schema().arguments().size();
    for (const Reader& reader : readers()) {
      if (name != str_cat("aten::", reader.op)) continue;
      for (const size_t operand : reader.read) {
        if (tracer.constant(stack[first + operand].toTensor())) continue;
        throw invalid_argument(
            tracer.options_.name, ": ", name, " reads the elements of its operand \"",
            op.schema().arguments()[operand].name(),
            "\", which would stay what they are now; give it numbers, or a tensor that the function ",
            "makes of numbers");
      }
    }
  }

  // rand(), rand_like() and the like take numbers from the global stream. They are made of empty() and uniform_(),
  // which can be given the stream of the step.
  static bool draws_without_generator(const c10::OperatorHandle& op) {
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
    for (const c10::Argument& argument : op.schema().arguments()) {
      if (argument.name() == "generator") return false;
    }
    return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
           op.schema().name() == "aten::native_dropout";
  }
};

void install_dispatcher_hook() {
  static const std::vector<torch::Library> libraries = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kTraceKey)) {
      throw internal("another library in this process has registered libtorch's dispatch key ",
                     std::string(c10::toString(kTraceKey)),
                     ", which Muster traces with; the two cannot be used together");
    }
    std::vector<torch::Library> made;
    made.emplace_back(torch::Library::IMPL, "_", kTraceKey, __FILE__, __LINE__);
    made.back().fallback(torch::CppFunction::makeFromBoxedFunction<&DispatcherHook::on_op>());
    made.emplace_back(torch::Library::IMPL, "_", kWatchKey, __FILE__, __LINE__);
    made.back().fallback(torch::CppFunction::makeFallthrough());
    made.emplace_back(torch::Library::IMPL, "aten", kWatchKey, __FILE__, __LINE__);
    for (const auto& reader : DispatcherHook::readers()) {
      made.back().impl(reader.op, torch::CppFunction::makeFromBoxedFunction<&DispatcherHook::on_reader>());
    }
    return made;
  }();
}

}  // namespace muster
