#include "muster/trace/caller.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "muster/base/strings.h"

namespace muster {

std::string caller_outside_libraries() {
  std::array<void*, 128> frames;
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    std::string_view file = info.dli_fname;
    file.remove_prefix(file.rfind('/') + 1);
    if (file.starts_with("libtorch") || file.starts_with("libc10") || file.starts_with("libmuster")) continue;
    if (info.dli_sname == nullptr) continue;
    int status = 0;
    std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                     &std::free);
    const std::string_view readable = status == 0 ? name.get() : info.dli_sname;
    if (readable.starts_with("at::") || readable.starts_with("c10::") || readable.starts_with("torch::") ||
        readable.starts_with("muster::") || readable.starts_with("std::")) {
      continue;
    }
    return str_cat(readable, " in ", file);
  }
  return "an unknown function";
}

}  // namespace muster
