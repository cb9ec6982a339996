#include "muster/graph/resized.h"

#include <utility>

namespace muster {
namespace {

// Walks two programs at once. Every method says whether they are alike, and changes the first one's numbers.
class Resizing {
 public:
  Resizing(int64_t one, int64_t other, int64_t size) : one_(one), other_(other), size_(size) {}

  bool program(Program& a, const Program& b) const {
    return a.name == b.name && a.seed == b.seed && a.num_values == b.num_values && a.devices == b.devices &&
           a.ops == b.ops && a.outputs == b.outputs && a.task == b.task && a.parts.empty() && b.parts.empty() &&
           all(a.arguments, b.arguments, &Resizing::argument) && all(a.variables, b.variables, &Resizing::variable) &&
           all(a.constants, b.constants, &Resizing::constant) &&
           all(a.instructions, b.instructions, &Resizing::instruction) && all(a.bodies, b.bodies, &Resizing::program);
  }

 private:
  template <class T>
  bool all(std::vector<T>& a, const std::vector<T>& b, bool (Resizing::*alike)(T&, const T&) const) const {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!(this->*alike)(a[i], b[i])) return false;
    }
    return true;
  }

  bool number(int64_t& a, const int64_t& b) const {
    if (a == b) return true;
    int64_t rise = 0, whole = 0;
    if (__builtin_sub_overflow(b, a, &rise) || __builtin_mul_overflow(rise, size_ - one_, &rise)) return false;
    if (rise % (other_ - one_) != 0 || __builtin_add_overflow(a, rise / (other_ - one_), &whole)) return false;
    a = whole;
    return whole >= 0;
  }

  bool value_of(Argument& a, const Argument& b) const {
    if (a.value.index() != b.value.index()) return false;
    if (auto* integer = std::get_if<int64_t>(&a.value)) return number(*integer, std::get<int64_t>(b.value));
    if (auto* list = std::get_if<ArgumentList>(&a.value)) {
      return all(*list, std::get<ArgumentList>(b.value), &Resizing::value_of);
    }
    return a == b;
  }

  bool argument(ProgramArgument& a, const ProgramArgument& b) const {
    return a.value == b.value && a.device == b.device && a.any == b.any && a.spec.dtype == b.spec.dtype &&
           all(a.spec.sizes, b.spec.sizes, &Resizing::number);
  }

  bool variable(VariableRef& a, const VariableRef& b) const {
    return a.value == b.value && a.name == b.name && a.spec == b.spec && a.device == b.device && a.wire == b.wire;
  }

  bool constant(Constant& a, const Constant& b) const {
    const bool same_bytes = a.bytes == b.bytes || (a.bytes && b.bytes && *a.bytes == *b.bytes);
    return a.value == b.value && a.spec == b.spec && a.is_number == b.is_number && same_bytes;
  }

  bool instruction(Instruction& a, const Instruction& b) const {
    return a.op == b.op && a.device == b.device && a.results == b.results && a.bodies == b.bodies &&
           all(a.arguments, b.arguments, &Resizing::value_of);
  }

  const int64_t one_, other_, size_;
};

}  // namespace

std::optional<Program> resized(const SizedProgram& one, const SizedProgram& other, int64_t size) {
  // Small enough for their differences.
  constexpr int64_t kLargest = int64_t{1} << 62;
  for (const int64_t each : {one.size, other.size, size}) {
    if (each < 0 || each > kLargest) return std::nullopt;
  }
  if (one.size == other.size) return std::nullopt;
  Program program = one.program;
  if (!Resizing(one.size, other.size, size).program(program, other.program)) return std::nullopt;
  return program;
}

}  // namespace muster
