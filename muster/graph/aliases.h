#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "muster/graph/op_schema.h"
#include "muster/graph/program.h"

namespace muster {

// Which values of a program may share memory, and who writes to it. Values that may share memory are one group; when in
// doubt they are. Every argument, variable and constant begins as a group of its own; what the schemas say joins them.
// Control flow counts as what its bodies do: it writes what they write, and its results share what theirs share.
// REQUIRES: the program has passed check(). It is not referred to after construction, so it may change; then this is
// stale. Immutable, so any thread may ask.
class Aliases {
 public:
  explicit Aliases(const Program& program) : Aliases(program, {}) {}

  // Arguments with equal numbers in `argument_classes` (one per argument, or none at all) may share memory: so it is
  // with the arguments of a body whose caller gave it a tensor and a view of that tensor.
  Aliases(const Program& program, const std::vector<int>& argument_classes);

  int num_groups() const { return num_groups_; }
  int group(ValueId value) const { return groups_[value]; }

  bool written(int group) const { return written_[group]; }  // by any instruction
  bool writes(size_t instruction, int group) const;
  const std::vector<int>& written_groups(size_t instruction) const { return writes_[instruction]; }  // sorted

  // Whether the instruction does something besides its results and writes, as an assertion does.
  bool acts(size_t instruction) const { return acts_[instruction]; }
  // Whether it takes numbers from the random stream of the step.
  bool draws(size_t instruction) const { return draws_[instruction]; }

  const OpSchema& schema(const Instruction& instruction) const { return *schemas_[instruction.op]; }

  // For the constructor above: how the callers of body number `body` join its arguments.
  const std::vector<int>& argument_classes(size_t body) const { return body_classes_[body]; }

 private:
  int num_groups_ = 0;
  std::vector<int> groups_;                               // by value
  std::vector<bool> written_;                             // by group
  std::vector<std::vector<int>> writes_;                  // by instruction
  std::vector<bool> acts_;                                // by instruction
  std::vector<bool> draws_;                               // by instruction
  std::vector<std::shared_ptr<const OpSchema>> schemas_;  // by op
  std::vector<std::vector<int>> body_classes_;
};

// The aliases of a program's bodies, and of theirs, each found when it is first asked for and kept. REQUIRES: the
// program stays where and as it is. For one thread.
class BodyAliases {
 public:
  // Of body `number` of `program`, whose own aliases are `outside`.
  const Aliases& of(const Program& program, const Aliases& outside, size_t number);

 private:
  std::map<const Program*, Aliases> known_;
};

// The values that the instruction hands to each of its bodies as arguments, in their order; kNoValue for those that the
// instruction makes itself (the index of a trip, the gradients that loop_gradient carries from trip to trip).
// Undefined tensors are kNoValue, too.
std::vector<ValueId> body_inputs(const Program& program, const Instruction& instruction, size_t body);

}  // namespace muster
