#pragma once

#include <string>

namespace muster {

// Throws Error{kNotFound} or Error{kPermissionDenied} that names the file, and Error{kInvalidArgument} for one of more
// than 64 MiB.
std::string read_file(const std::string& path);

}  // namespace muster
