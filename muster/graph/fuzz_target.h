// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <algorithm>
#include <string_view>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/graph/checker.h"
#include "muster/graph/dump.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/passes/passes.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/serialize.h"
#include "muster/graph/test_program.h"

namespace muster::testing_support {

// Small, so that a run costs little whatever the bytes say.
inline Limits fuzz_limits() {
  return {.instructions = 1000, .values = 100'000, .bodies = 100, .constant_bytes = 1 << 20};
}

// What OpCatalog::verify() does in a process with libtorch: nobody looks at a program before.
inline bool schemas_are_true(const Program& program) {
  for (const Op& op : program.ops) {
    if (own_op(op.name) == nullptr && schema_of(op.name) != op.schema) return false;
  }
  return std::all_of(program.bodies.begin(), program.bodies.end(), schemas_are_true);
}

// Everything that graph/ does with a program that is not trusted. Whatever passes check() must survive the rest, and
// must pass check() again after it. Returns whether it passed.
inline bool try_program(std::string_view bytes) {
  Program program;
  try {
    program = parse_program(bytes);
    check(program, fuzz_limits());
  } catch (const Error&) {
    return false;
  }
  if (!schemas_are_true(program)) return false;
  dump(program);
  dot(program);
  MUSTER_CHECK(serialize(parse_program(serialize(program))) == serialize(program));
  optimize(program, {.contract = true}, nullptr, schema_of);
  check(program);
  try {
    program = place(std::move(program), {.devices = {}, .default_device = ""});
  } catch (const Error&) {
    return true;  // A device that does not exist, which check() cannot know.
  }
  check(program);
  placement_table(program);
  return true;
}

}  // namespace muster::testing_support
