// The place where libtorch's dispatcher is told about tracing.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace muster {

// The one key below Autograd that nothing in libtorch registers. Newer headers reserve it for a C++ fake-tensor mode.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::Fake;

// Registers the hook with the dispatcher, once. Throws Error{kInternal} if somebody else has taken the key.
void install_dispatcher_hook();

// Ops of this thread are recorded by Tracer::current() while one of these lives,
class [[nodiscard]] Traced {
  c10::impl::IncludeDispatchKeyGuard include_{kTraceKey};
};
// and not while one of these does.
class [[nodiscard]] Untraced {
  c10::impl::ExcludeDispatchKeyGuard exclude_{kTraceKey};
};

}  // namespace muster
