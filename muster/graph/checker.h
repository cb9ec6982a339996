#pragma once

#include <cstdint>

#include "muster/graph/program.h"

namespace muster {

// How large a program from a stranger may be. The totals count all bodies together.
struct Limits {
  int64_t instructions = 1'000'000;           // total
  int64_t values = 8'000'000;                 // total
  int64_t bodies = 100'000;                   // total
  int64_t constant_bytes = int64_t{2} << 30;  // total
  int64_t tensor_bytes = int64_t{1} << 40;    // of one argument or variable, by its spec
  int64_t ops = 10'000;                       // different ones, in one program
  int64_t devices = 100'000;                  // different ones, in one program
  int64_t arguments = 256;                    // of one instruction
  int64_t list_length = 1'000'000;            // of one argument or result
  int64_t text_length = 65'536;               // of one string argument
  int64_t name_length = 4'096;                // of a program, variable, op or device
  int64_t schema_length = 16'384;
  int64_t dims = 64;
  int nesting = 16;  // of bodies in bodies
};

// Makes sure that whatever walks the program afterwards finds what it refers to: every index is in range, every value
// is defined once and before its uses, every argument fits the schema of its op, every body fits its instruction, and
// the bytes of a constant are as many as its spec says. Does not know libtorch: whether an op exists, may be run and
// has this schema there is for the executor to say. Throws Error{kInvalidArgument} for a program that is malformed and
// Error{kResourceExhausted} for one over a limit; the message names the program, the instruction and the op.
void check(const Program& program, const Limits& limits = {});

}  // namespace muster
