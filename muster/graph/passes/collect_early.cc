#include <algorithm>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

enum class Early { kCollectives, kCopies };

// Moves the instructions of one kind up to where their operands are there.
class EarlyInstructions {
 public:
  EarlyInstructions(Program& program, const Aliases& aliases, Early kind)
      : program_(program),
        aliases_(aliases),
        in_order_(kind == Early::kCollectives),
        ready_(aliases.num_groups(), 0),
        made_(program.num_values, 0) {}

  int run() {
    const size_t count = program_.instructions.size();
    std::vector<size_t> places(count);  // before which of the old instructions each one comes
    int moved = 0;
    size_t others = 0;  // the first place after all that stays
    for (size_t i = 0; i < count; ++i) {
      const Instruction& instruction = program_.instructions[i];
      const std::string& op = program_.op_of(instruction).name;
      places[i] = i;
      if (moves(op)) {
        places[i] = in_order_ ? std::max(last_, earliest(instruction)) : earliest(instruction);
        if (places[i] < others) ++moved;
      } else {
        others = i + 1;
      }
      // What shares a place with one that moved comes after it.
      const size_t after = places[i] == i ? i + 1 : places[i];
      const bool may_have_some = !instruction.bodies.empty() || is_communication(op);
      if (moves(op) || may_have_some) last_ = after;
      for (int group : aliases_.written_groups(i)) ready_[group] = after;
      for (const auto& result : instruction.results) {
        for (ValueId value : result) {
          if (value != kNoValue) made_[value] = after;
        }
      }
    }
    if (moved > 0) reorder(places);
    return moved;
  }

 private:
  // What is copied may be a view, which is made where its memory is.
  bool moves(const std::string& op) const {
    return in_order_ ? op == kCollective.name : op == kCopy.name || is_view(op);
  }

  size_t earliest(const Instruction& instruction) const {
    size_t place = 0;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId id) { place = std::max({place, made_[id], ready_[aliases_.group(id)]}); });
    }
    return place;
  }

  // Those that moved come before the one whose place they share; among them as they were.
  void reorder(const std::vector<size_t>& places) {
    std::vector<size_t> order(places.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(places[a], places[a] == a) < std::pair(places[b], places[b] == b);
    });
    std::vector<Instruction> ordered;
    for (size_t i : order) ordered.push_back(std::move(program_.instructions[i]));
    program_.instructions = std::move(ordered);
  }

  Program& program_;
  const Aliases& aliases_;
  const bool in_order_;  // among themselves: the tasks of a group make their calls in one order
  // Numbers of old instructions: what may be done before one of them when all before it was done.
  std::vector<size_t> ready_;  // by group: after the last write so far
  std::vector<size_t> made_;   // by value
  size_t last_ = 0;            // place so far, of those in order
};

int run_early(Program& program, const std::vector<int>& argument_classes, Early kind) {
  const Aliases aliases(program, argument_classes);
  int moved = 0;
  for (size_t i = 0; i < program.bodies.size(); ++i) {
    moved += run_early(program.bodies[i], aliases.argument_classes(i), kind);
  }
  return moved + EarlyInstructions(program, aliases, kind).run();
}

}  // namespace

int collect_early(Program& program) { return run_early(program, {}, Early::kCollectives); }
int copy_early(Program& program) { return run_early(program, {}, Early::kCopies); }

}  // namespace muster
