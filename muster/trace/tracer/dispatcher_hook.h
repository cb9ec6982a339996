// The place where libtorch's dispatcher is told about tracing.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster {

// The one key below Autograd that nothing in libtorch registers. Newer headers reserve it for a C++ fake-tensor mode.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::Fake;

// One above Autograd, for the few ops that read the elements of an operand before any op below sees it. Only libtorch's
// own tests use it; ops without such a kernel never stop there.
inline constexpr c10::DispatchKey kWatchKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
inline constexpr c10::DispatchKeySet kTraceKeys({kTraceKey, kWatchKey});

// Registers the hook with the dispatcher, once. Throws Error{kInternal} if somebody else has taken the key.
void install_dispatcher_hook();

// Ops of this thread are recorded by Tracer::current() while one of these lives,
class [[nodiscard]] Traced {
  c10::impl::IncludeDispatchKeyGuard include_{kTraceKeys};
};
// and not while one of these does.
class [[nodiscard]] Untraced {
  c10::impl::ExcludeDispatchKeyGuard exclude_{kTraceKeys};
};

}  // namespace muster
