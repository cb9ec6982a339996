#pragma once

#include <optional>
#include <string>

#include "muster/rpc/credentials/credentials.h"

namespace muster {

// Why a task that can be reached cannot be talked to, in words, where the reason is in the credentials of one of the
// two: that stays so, however often one tries. gRPC says no more than that a connection could not be made; this makes
// one of its own, shows what a channel would show, and looks at what comes back. Nothing where there is another
// reason: nobody listens there, or nobody answers within a second.
// `task` may be empty: then the certificate must name the host.
std::optional<std::string> credentials_refusal(const std::string& address, const std::string& task,
                                               const Credentials& credentials);

}  // namespace muster
