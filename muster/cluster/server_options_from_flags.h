#pragma once

#include "muster/cluster/server.h"

namespace muster {

// The task that this process is, from its command line: what resolver_from_flags() reads, and
//   --credentials certificates/worker-0   a directory that `muster certs` has made for this task
//   --insecure                            listen beyond this machine without them
//   --storage /checkpoints                a directory for checkpoints and caches of datasets; may come again
//   --data /data                          a directory below which datasets may read files; may come again
// Other flags are the program's own. Throws as resolver_from_flags() and read_credentials() do, and
// Error{kInvalidArgument} if nobody says which task this is.
ServerOptions server_options_from_flags(int argc, const char* const* argv);

}  // namespace muster
