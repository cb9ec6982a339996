// What a program takes from sequences of examples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/program.h"

namespace muster {

using ElementSpec = std::vector<TensorSpec>;    // of one element: what each of its tensors looks like
using ElementSpecs = std::vector<ElementSpec>;  // of several, in the order in which they are taken

// An element as muster::next wants it: per tensor its type, the number of its sizes, its sizes. Throws
// Error{kInvalidArgument} for numbers that say nothing.
std::vector<int64_t> numbers_of(const ElementSpec& element);
ElementSpec element_from(std::span<const int64_t> numbers);
ElementSpec element_of(const Instruction& next);  // REQUIRES: an instruction muster::next, checked
std::string describe_elements(const ElementSpecs& elements);

// An instruction by which a run takes an element before it does anything else, and the argument or constant that is the
// number of the sequence.
struct FirstElement {
  size_t instruction = 0;
  ValueId number = 0;
};

// The elements of the program itself, in order, up to the first body that takes any: the order of elements stays as it
// is written. How many there are does not depend on placement. A part of a step has none, since it begins in its
// middle.
std::vector<FirstElement> first_elements(const Program& program);
ElementSpecs first_element_specs(const Program& program);

// ---- A run that found other elements than its program is for, and has given them back: nothing has happened, and a
// program for such elements can be run instead. This is decided by the error's detail.
Error other_elements(const ElementSpecs& found, const ElementSpecs& expected);
// The elements that it found; nothing for any other error.
std::optional<ElementSpecs> other_elements_of(const Status& status);

}  // namespace muster
