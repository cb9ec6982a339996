#include "muster/trace/caller.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "muster/base/strings.h"

namespace muster {
namespace {

struct StackFrame {
  std::string file{};    // without its folder
  std::string symbol{};  // mangled; "" if it has none
};

std::string readable(const std::string& symbol) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                   &std::free);
  return status == 0 ? name.get() : symbol;
}

// Reads `count` things from a place of a file; none if they are not there.
template <class T>
std::vector<T> read_at(std::ifstream& file, uint64_t offset, uint64_t count) {
  std::vector<T> things(count < (uint64_t{1} << 32) / sizeof(T) ? count : 0);
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(things.data()), static_cast<std::streamsize>(things.size() * sizeof(T)));
  if (!file) things.clear();
  return things;
}

// The function at an address of a program or library, from the symbols that are there for a debugger: the dynamic ones
// lack everything that is static, such as lambdas.
std::string debug_symbol(const Dl_info& info, uintptr_t address) {
  std::ifstream file(info.dli_fname, std::ios::binary);
  if (!file) file.open("/proc/self/exe", std::ios::binary);  // a program that was found by PATH
  const auto header = read_at<ElfW(Ehdr)>(file, 0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return "";
  const uintptr_t wanted = address - (header[0].e_type == ET_DYN ? reinterpret_cast<uintptr_t>(info.dli_fbase) : 0);
  const auto sections = read_at<ElfW(Shdr)>(file, header[0].e_shoff, header[0].e_shnum);
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    for (const ElfW(Sym) & symbol : read_at<ElfW(Sym)>(file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym)))) {
      const bool function = (symbol.st_info & 0xf) == STT_FUNC;
      if (!function || wanted < symbol.st_value || wanted >= symbol.st_value + symbol.st_size) continue;
      const ElfW(Shdr)& names = sections[section.sh_link];
      if (symbol.st_name >= names.sh_size) return "";
      const auto name = read_at<char>(file, names.sh_offset + symbol.st_name,
                                      std::min<uint64_t>(names.sh_size - symbol.st_name, 1 << 16));
      return std::string(name.begin(), std::find(name.begin(), name.end(), '\0'));
    }
  }
  return "";
}

bool is_library_file(std::string_view file) {
  for (std::string_view library :
       {"libtorch", "libc10", "libmuster", "libc.", "libstdc++", "libpthread", "libtsan", "libasan"}) {
    if (file.starts_with(library)) return true;
  }
  return false;
}

// A call is in the middle of a function, a return address may be behind its end.
StackFrame frame_at(uintptr_t address) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(address - 1), &info) == 0 || info.dli_fname == nullptr) return {};
  std::string_view file = info.dli_fname;
  file.remove_prefix(file.rfind('/') + 1);
  StackFrame frame{std::string(file), info.dli_sname == nullptr ? "" : info.dli_sname};
  if (frame.symbol.empty() && !is_library_file(frame.file)) frame.symbol = debug_symbol(info, address - 1);
  return frame;
}

// Inline functions of libraries are instantiated by the program. Their names begin with a name space, also where
// something local (Z) or const (K) is meant.
bool is_of_a_library(const StackFrame& frame) {
  if (is_library_file(frame.file)) return true;
  std::string_view name = frame.symbol;
  if (!name.starts_with("_Z")) return name.starts_with("_start") || name.starts_with("__libc");
  name.remove_prefix(std::min(name.find_first_not_of("ZNK", 2), name.size()));
  for (std::string_view space : {"St", "2at", "3c10", "5torch", "6muster", "7testing", "9__gnu_cxx"}) {
    if (name.starts_with(space)) return true;
  }
  return frame.symbol.starts_with("_ZT");
}

std::string first_outside(const std::vector<uintptr_t>& addresses) {
  for (const uintptr_t address : addresses) {
    const StackFrame frame = frame_at(address);
    if (frame.symbol.empty() || is_of_a_library(frame)) continue;
    std::string name = readable(frame.symbol);
    const size_t lambda = name.find("::{lambda(");
    return lambda == std::string::npos ? name : str_cat("a lambda in ", name.substr(0, lambda));
  }
  return "";
}

}  // namespace

std::vector<uintptr_t> stack_addresses() {
  std::array<void*, 256> addresses;
  const int depth = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  std::vector<uintptr_t> result;
  for (int i = 0; i < depth; ++i) result.push_back(reinterpret_cast<uintptr_t>(addresses[i]));
  return result;
}

std::string caller_outside_libraries() { return first_outside(stack_addresses()); }

std::string caller_outside_libraries(std::string_view backtrace) {
  // "frame #7: name + 0x28de4 (0xaaaac9e08de4 in /path/program)"
  std::vector<uintptr_t> addresses;
  while (!backtrace.empty()) {
    const std::string_view line = backtrace.substr(0, backtrace.find('\n'));
    backtrace.remove_prefix(std::min(line.size() + 1, backtrace.size()));
    const size_t in = line.rfind(" in "), open = in == std::string_view::npos ? in : line.rfind("(0x", in);
    if (open == std::string_view::npos) continue;
    uintptr_t address = 0;
    std::from_chars(line.data() + open + 3, line.data() + in, address, 16);
    if (address != 0) addresses.push_back(address);
  }
  return first_outside(addresses);
}

std::string libtorch_function(std::string_view name, const std::vector<uintptr_t>& stack) {
  for (const uintptr_t address : stack) {
    const StackFrame frame = frame_at(address);
    if (!frame.file.starts_with("libtorch")) continue;
    const std::string function = readable(frame.symbol);
    if (function.find(name) != std::string::npos) return function.substr(0, function.find('('));
  }
  return "";
}

}  // namespace muster
