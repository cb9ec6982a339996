#pragma once

#include <cstdint>
#include <optional>

#include "muster/graph/program.h"

namespace muster {

// A program that was traced with batches of `size` examples.
struct SizedProgram {
  int64_t size = 0;
  Program program{};
};

// The program for batches of another size, out of those for two different sizes: whole numbers that differ between them
// (the sizes that a view or an argument has) grow with the batch along a straight line. Nothing if the programs differ
// in anything else, or if a number on that line is not a whole one or is negative.
// The result is a guess until it was compared with a trace, or at least checked as what a stranger sent.
std::optional<Program> resized(const SizedProgram& one, const SizedProgram& other, int64_t size);

}  // namespace muster
