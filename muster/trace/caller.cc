#include "muster/trace/caller.h"

#include <absl/strings/str_format.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "muster/base/strings.h"

namespace muster {
namespace {

struct StackFrame {
  std::string file;      // without its folder
  std::string function;  // "" if it has no exported symbol
  uintptr_t offset;      // in the file
};

std::string readable(const char* symbol) {
  if (symbol == nullptr) return "";
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : symbol;
}

// From the innermost function outwards.
std::vector<StackFrame> stack_frames() {
  std::array<void*, 256> addresses;
  const int depth = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  std::vector<StackFrame> frames;
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (dladdr(addresses[i], &info) == 0 || info.dli_fname == nullptr) continue;
    std::string_view file = info.dli_fname;
    file.remove_prefix(file.rfind('/') + 1);
    frames.push_back({std::string(file), readable(info.dli_sname),
                      reinterpret_cast<uintptr_t>(addresses[i]) - reinterpret_cast<uintptr_t>(info.dli_fbase)});
  }
  return frames;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](auto begin) { return text.starts_with(begin); });
}

bool in_a_library(const StackFrame& frame) {
  if (starts_with_any(frame.file, {"libtorch", "libc10", "libmuster", "libc.", "libstdc++", "libpthread"})) return true;
  // Inline functions of libraries, instantiated by the program: "float at::Tensor::item<float>() const".
  std::string_view name = std::string_view(frame.function).substr(0, frame.function.find_first_of("(<"));
  name.remove_prefix(name.rfind(' ') + 1);
  return starts_with_any(name, {"at::", "c10::", "torch::", "muster::", "std::"});
}

}  // namespace

std::string caller_outside_libraries() {
  for (const StackFrame& frame : stack_frames()) {
    if (in_a_library(frame)) continue;
    if (frame.function.empty()) return absl::StrFormat("%s+0x%x", frame.file, frame.offset);
    return str_cat(frame.function, " in ", frame.file);
  }
  return "an unknown function";
}

bool called_by_libtorch(std::string_view name) {
  for (const StackFrame& frame : stack_frames()) {
    if (frame.file.starts_with("libtorch") && frame.function.find(name) != std::string::npos) return true;
  }
  return false;
}

}  // namespace muster
