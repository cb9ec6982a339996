#include <map>
#include <optional>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

constexpr const char* kRelu = "aten::relu";
constexpr const char* kPool = "aten::max_pool2d_with_indices";
constexpr const char* kPoolBackward = "aten::max_pool2d_with_indices_backward";
constexpr const char* kReluBackward = "aten::threshold_backward";

// The instructions of pool(relu(x)) and of its gradient, by number.
struct Pattern {
  size_t relu = 0;
  size_t pool = 0;
  std::optional<size_t> pool_backward{}, relu_backward{};
};

class PoolFirst {
 public:
  explicit PoolFirst(Program& program) : program_(program), aliases_(program), users_(program.num_values) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      for (const Argument& argument : program.instructions[i].arguments) {
        for_each_value(argument, [&](ValueId id) {
          if (id >= 0) users_[id].push_back(i);
        });
      }
    }
    for (ValueId output : program.outputs) {
      if (output >= 0) users_[output].push_back(kOutput);
    }
  }

  int run() {
    std::vector<Pattern> found;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (auto pattern = match(i)) found.push_back(*pattern);
    }
    std::vector<Instruction> in_order;
    std::map<size_t, Instruction> relu_after;  // by the number of the pooling that it follows
    std::vector<bool> removed(program_.instructions.size());
    for (const Pattern& pattern : found) {
      relu_after.emplace(pattern.pool, rewrite(pattern));
      removed[pattern.relu] = true;
    }
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (!removed[i]) in_order.push_back(std::move(program_.instructions[i]));
      if (auto after = relu_after.find(i); after != relu_after.end()) in_order.push_back(std::move(after->second));
    }
    program_.instructions = std::move(in_order);
    return static_cast<int>(found.size());
  }

 private:
  static constexpr size_t kOutput = static_cast<size_t>(-1);

  const Instruction& at(size_t number) const { return program_.instructions[number]; }
  bool is(size_t number, const char* op) const { return program_.op_of(at(number)).name == op; }
  static ValueId operand(const Instruction& instruction, size_t position) {
    const auto* ref = std::get_if<ValueRef>(&instruction.arguments[position].value);
    return ref ? ref->id : kNoValue;
  }
  static ValueId result(const Instruction& instruction, size_t position = 0) {
    const auto& values = instruction.results[position];
    return values.size() == 1 ? values[0] : kNoValue;
  }
  bool used_only_by(ValueId value, size_t user) const { return users_[value] == std::vector<size_t>{user}; }

  std::optional<Pattern> match(size_t number) const {
    if (!is(number, kRelu)) return {};
    const ValueId x = operand(at(number), 0);
    const ValueId rectified = result(at(number));
    if (x == kNoValue || rectified == kNoValue) return {};
    if (aliases_.written(aliases_.group(x)) || aliases_.written(aliases_.group(rectified))) return {};

    Pattern pattern{.relu = number};
    bool pooled = false;
    for (size_t user : users_[rectified]) {
      if (user == kOutput || at(user).device != at(number).device) return {};
      if (is(user, kPool) && !pooled) {
        pattern.pool = user;
        pooled = true;
      } else if (is(user, kPoolBackward) && !pattern.pool_backward && operand(at(user), 1) == rectified) {
        pattern.pool_backward = user;
      } else if (is(user, kReluBackward) && !pattern.relu_backward && operand(at(user), 1) == rectified) {
        pattern.relu_backward = user;
      } else {
        return {};
      }
    }
    if (!pooled || pattern.pool_backward.has_value() != pattern.relu_backward.has_value()) return {};
    const ValueId pool = result(at(pattern.pool)), indices = result(at(pattern.pool), 1);
    if (pool == kNoValue || aliases_.written(aliases_.group(pool))) return {};
    if (!pattern.pool_backward)
      return indices == kNoValue || users_[indices].empty() ? std::optional(pattern) : std::nullopt;

    const Instruction& pool_backward = at(*pattern.pool_backward);
    const Instruction& relu_backward = at(*pattern.relu_backward);
    const ValueId spread = result(pool_backward);
    const bool chained = operand(relu_backward, 0) == spread && spread != kNoValue &&
                         used_only_by(spread, *pattern.relu_backward) && indices != kNoValue &&
                         operand(pool_backward, pool_backward.arguments.size() - 1) == indices &&
                         used_only_by(indices, *pattern.pool_backward) && operand(pool_backward, 0) != kNoValue &&
                         !aliases_.written(aliases_.group(operand(pool_backward, 0)));
    return chained ? std::optional(pattern) : std::nullopt;
  }

  // Changes the instructions in place and returns the relu that goes behind the pooling.
  Instruction rewrite(const Pattern& pattern) {
    const ValueId x = operand(at(pattern.relu), 0);
    Instruction relu = at(pattern.relu);
    Instruction& pool = program_.instructions[pattern.pool];
    const ValueId pooled = program_.new_value();
    relu.arguments[0] = {ValueRef{pooled}};
    relu.results[0][0] = result(pool);
    pool.arguments[0] = {ValueRef{x}};
    pool.results[0][0] = pooled;
    if (pattern.pool_backward) {
      Instruction& first = program_.instructions[*pattern.pool_backward];
      Instruction& second = program_.instructions[*pattern.relu_backward];
      std::swap(first, second);
      const ValueId masked = program_.new_value();
      const ValueId gradient = operand(second, 0);
      const ValueId out = result(first);
      first.arguments[0] = {ValueRef{gradient}};
      first.arguments[1] = {ValueRef{relu.results[0][0]}};
      first.results[0][0] = masked;
      second.arguments[0] = {ValueRef{masked}};
      second.arguments[1] = {ValueRef{x}};
      second.results[0][0] = out;
    }
    return relu;
  }

  Program& program_;
  const Aliases aliases_;
  std::vector<std::vector<size_t>> users_;  // by value; kOutput for an output of the program
};

}  // namespace

int pool_first(Program& program) {
  int moved = 0;
  for (Program& body : program.bodies) moved += pool_first(body);
  return moved + PoolFirst(program).run();
}

}  // namespace muster
