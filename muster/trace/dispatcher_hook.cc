#include "muster/trace/dispatcher_hook.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "muster/base/status.h"
#include "muster/trace/tracer.h"

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

 private:
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
  static const torch::Library library = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kTraceKey)) {
      throw internal("another library in this process has registered libtorch's dispatch key ",
                     std::string(c10::toString(kTraceKey)),
                     ", which Muster traces with; the two cannot be used together");
    }
    torch::Library fallback(torch::Library::IMPL, "_", kTraceKey, __FILE__, __LINE__);
    fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&DispatcherHook::on_op>());
    return fallback;
  }();
}

}  // namespace muster
