// Who decides where variables live.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/trace/initial_value.h"
#include "muster/trace/variable.h"

namespace muster {

// Reads and writes variables that live with other tasks, outside of traced functions. Thread-safe.
class VariableHome {
 public:
  enum class Write { kAssign, kAdd, kSub };

  virtual ~VariableHome() = default;
  virtual at::Tensor read(const Variable::State& variable) = 0;
  virtual void write(const Variable::State& variable, Write how, const at::Tensor& value) = 0;
  // A variable of its own on the device of `other`: what an optimizer keeps for each variable.
  virtual std::shared_ptr<Variable::State> create_beside(const Variable::State& other, const InitialValue& initial,
                                                         VariableOptions options) = 0;
  // A new variable is there, as all its parts or as the one that it is whole: gives it the value that is kept for it,
  // if there is one.
  virtual void fill(const std::vector<std::shared_ptr<Variable::State>>& parts) = 0;
};

// Gives variables that are made here, and live here, the values that are kept for them, if there are some. Thread-safe.
class VariableFiller {
 public:
  virtual ~VariableFiller() = default;
  // All copies, or parts, of one that is new.
  virtual void fill(const std::vector<std::shared_ptr<Variable::State>>& copies) = 0;
};
// The one of this process from now on; null: none.
void set_variable_filler(std::shared_ptr<VariableFiller> filler);

// Makes variables in the place of Variable's constructor.
class VariableCreator {
 public:
  // Which of two creators decides where their scopes nest: of two of a kind the inner one, of a user's and a strategy's
  // the outer one, as TensorFlow has it. kAlways is for a ban on variables.
  enum class Authority { kUser, kStrategy, kAlways };

  virtual ~VariableCreator() = default;
  virtual Authority authority() const { return Authority::kUser; }
  // `may_split`: into parts.
  virtual std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options,
                                                  bool may_split) = 0;
};

// Until the scope ends, variables made by this thread are made by `creator`. Scopes nest, by the creators' authority.
// Without a creator they are made here, as outside of all scopes.
class [[nodiscard]] VariableScope {
 public:
  explicit VariableScope(std::shared_ptr<VariableCreator> creator);
  ~VariableScope();
  VariableScope(const VariableScope&) = delete;
  VariableScope& operator=(const VariableScope&) = delete;

  static const std::shared_ptr<VariableCreator>& current();

 private:
  const std::shared_ptr<VariableCreator> outer_;
};

// A variable beside another one, in the same parts on the same devices. `initial` makes the initial value for a shape.
// `alike`: it is one row, the same for all parts, of which each keeps one, however many parts there are.
Variable make_beside(const Variable& other, const std::string& name,
                     const std::function<InitialValue(const std::vector<int64_t>& sizes)>& initial, bool alike = false);
// One row beside all of them, alike on each of their devices: what is read wherever one of them is changed.
// REQUIRES: there are some.
Variable make_beside_all(const std::vector<Variable>& others, const std::string& name, const InitialValue& row);

}  // namespace muster
