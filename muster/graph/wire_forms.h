// Which tensors that go to a part of a program, and come from it, have the form of a variable there.
#pragma once

#include <vector>

#include "muster/graph/program.h"

namespace muster {

struct WireForms {
  std::vector<WireForm> arguments{}, outputs{};  // one for each; none at all: all travel as they are

  bool plain() const { return arguments.empty() && outputs.empty(); }
};

// - An output that is a variable, or was computed from it, has its form. Of two with different forms it has what is the
//   same in both.
// - An argument that is written to a variable, or from which that is computed, has its form. Where the program
//   writes it to variables with different forms, it has what is the same in all.
// - An argument that a variable is read by, such as ids of rows, is compressed without loss, if at all.
// REQUIRES: `part` is checked.
WireForms wire_forms(const Program& part);

// Of what parts hand to each other: a value that one has read from a variable, or that another one writes to it, has
// its form; if both, what is the same in both. Written into their muster::receive.
void give_forms_to_edges(std::vector<Program>& parts);

}  // namespace muster
