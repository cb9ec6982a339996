#include "muster/graph/aliases.h"

#include <algorithm>
#include <numeric>

#include "muster/graph/op_traits.h"

namespace muster {
namespace {

// Sets that can only grow together.
class UnionFind {
 public:
  explicit UnionFind(size_t size) : parents_(size) { std::iota(parents_.begin(), parents_.end(), 0); }

  int find(int element) {
    while (parents_[element] != element) {
      parents_[element] = parents_[parents_[element]];
      element = parents_[element];
    }
    return element;
  }

  // The smaller number stays in front, so that a group is called after its first value.
  void join(int a, int b) {
    a = find(a);
    b = find(b);
    if (a != b) parents_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> parents_;
};

bool share_a_letter(const std::string& a, const std::string& b) { return a.find_first_of(b) != std::string::npos; }

std::vector<ValueId> values_in(const Argument& argument) {
  std::vector<ValueId> values;
  for_each_value(argument, [&](ValueId id) { values.push_back(id); });
  return values;
}

// A list of tensors with a hole for each one that is undefined.
std::vector<ValueId> elements_of(const Argument& argument) {
  std::vector<ValueId> values;
  if (auto* list = std::get_if<ArgumentList>(&argument.value)) {
    for (const Argument& element : *list) {
      auto* ref = std::get_if<ValueRef>(&element.value);
      values.push_back(ref ? ref->id : kNoValue);
    }
  }
  return values;
}

void append(std::vector<ValueId>& to, const std::vector<ValueId>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// What running a body does to the values around it.
struct BodyEffects {
  explicit BodyEffects(const Program& body) : aliases(body) {
    for (size_t i = 0; i < body.instructions.size(); ++i) {
      acts = acts || aliases.acts(i);
      draws = draws || aliases.draws(i);
    }
  }

  Aliases aliases;
  bool acts = false;
  bool draws = false;
};

// The joins and writes of one program, instruction by instruction.
class Analysis {
 public:
  Analysis(const Program& program, const std::vector<std::shared_ptr<const OpSchema>>& schemas)
      : program_(program), schemas_(schemas), sets_(program.num_values), written_(program.instructions.size()) {
    for (const Program& body : program.bodies) effects_.emplace_back(body);
  }

  void join(ValueId a, ValueId b) {
    if (a != kNoValue && b != kNoValue) sets_.join(a, b);
  }

  void add(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    const std::string& name = program_.op_of(instruction).name;
    if (is_control(name)) {
      add_control(number, name);
    } else {
      add_plain(number);
    }
  }

  int find(ValueId value) { return sets_.find(value); }
  const std::vector<ValueId>& written(size_t number) const { return written_[number]; }
  const BodyEffects& effects(int body) const { return effects_[body]; }

 private:
  // Whether it is told that this is no training.
  static bool is_in_eval(const OpSchema& schema, const Instruction& instruction) {
    for (size_t a = 0; a < schema.arguments.size(); ++a) {
      if (schema.arguments[a].name != "training") continue;
      const bool* training = std::get_if<bool>(&instruction.arguments[a].value);
      return training != nullptr && !*training;
    }
    return false;
  }

  void add_plain(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    const OpSchema& schema = *schemas_[instruction.op];
    const bool keeps_statistics = is_in_eval(schema, instruction);
    for (size_t a = 0; a < schema.arguments.size(); ++a) {
      const SchemaArgument& argument = schema.arguments[a];
      // Those of batch norm are the writes that a schema does not mention.
      if (!argument.written || (keeps_statistics && argument.aliases.empty())) continue;
      append(written_[number], values_in(instruction.arguments[a]));
    }
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      const std::string& letters = schema.results[r].aliases;
      if (letters.empty()) continue;
      // A result that is "*" alone may share memory with anything that the op was given.
      bool anything = letters.find_first_not_of('*') == std::string::npos;
      for (size_t a = 0; a < schema.arguments.size(); ++a) {
        if (!anything && !share_a_letter(schema.arguments[a].aliases, letters)) continue;
        for (ValueId argument : values_in(instruction.arguments[a])) {
          for (ValueId result : instruction.results[r]) join(argument, result);
        }
      }
    }
    // set_ joins two arguments: its self is from now on what its source is.
    for (size_t a = 0; a < schema.arguments.size(); ++a) {
      if (!schema.arguments[a].written || schema.arguments[a].is_list()) continue;
      for (size_t b = 0; b < schema.arguments.size(); ++b) {
        if (a == b || !share_a_letter(schema.arguments[a].aliases, schema.arguments[b].aliases)) continue;
        for (ValueId left : values_in(instruction.arguments[a])) {
          for (ValueId right : values_in(instruction.arguments[b])) join(left, right);
        }
      }
    }
  }

  void add_control(size_t number, const std::string& name) {
    const Instruction& instruction = program_.instructions[number];
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = program_.bodies[instruction.bodies[b]];
      const Aliases& inside = effects_[instruction.bodies[b]].aliases;
      const std::vector<ValueId> inputs = body_inputs(program_, instruction, b);

      // One value out here for each group in there; whatever else belongs to that group is joined with it.
      std::vector<ValueId> outside(inside.num_groups(), kNoValue);
      auto link = [&](int group, ValueId value) {
        if (outside[group] == kNoValue) outside[group] = value;
        join(outside[group], value);
      };
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] == kNoValue) continue;
        int group = inside.group(body.arguments[i].value);
        link(group, inputs[i]);
        if (inside.written(group)) written_[number].push_back(inputs[i]);
      }
      if (name == kLoop.name && b == 1) continue;  // The condition's output is a bool for the loop itself.
      const std::vector<ValueId> results = results_of(instruction);
      for (size_t o = 0; o < body.outputs.size() && o < results.size(); ++o) {
        if (body.outputs[o] != kNoValue && results[o] != kNoValue) link(inside.group(body.outputs[o]), results[o]);
      }
    }
    if (name == kLoop.name || name == kLoopGradient.name) {
      // After no trip at all the state (the gradient) that comes out is the one that went in; and what a body returns
      // is what it is given on the next trip.
      const std::vector<ValueId> state = elements_of(instruction.arguments[name == kLoop.name ? 1 : 2]);
      for (size_t i = 0; i < state.size() && i < instruction.results[0].size(); ++i) {
        join(state[i], instruction.results[0][i]);
      }
    }
  }

  // The values that the outputs of a body become.
  static std::vector<ValueId> results_of(const Instruction& instruction) {
    std::vector<ValueId> results = instruction.results[0];
    // loop: `saved` and `trips` are made by the loop. loop_gradient: the outputs of the body fill both lists.
    if (instruction.results.size() == 2) append(results, instruction.results[1]);
    return results;
  }

  const Program& program_;
  const std::vector<std::shared_ptr<const OpSchema>>& schemas_;
  UnionFind sets_;
  std::vector<std::vector<ValueId>> written_;
  std::vector<BodyEffects> effects_;
};

}  // namespace

std::vector<ValueId> body_inputs(const Program& program, const Instruction& instruction, size_t body) {
  const std::string& name = program.op_of(instruction).name;
  std::vector<ValueId> inputs;
  if (name == kCond.name) {
    inputs = elements_of(instruction.arguments[1]);
  } else if (name == kLoop.name) {
    if (body == 0) inputs.push_back(kNoValue);
    append(inputs, elements_of(instruction.arguments[1]));
    append(inputs, elements_of(instruction.arguments[2]));
  } else if (name == kLoopGradient.name) {
    // The state of a trip is a slice of what was saved, and its gradients are the body's own of the trip after it.
    inputs.push_back(kNoValue);
    append(inputs, elements_of(instruction.arguments[1]));
    append(inputs, elements_of(instruction.arguments[2]));
    append(inputs, elements_of(instruction.arguments[3]));
  }
  return inputs;
}

Aliases::Aliases(const Program& program, const std::vector<int>& argument_classes)
    : acts_(program.instructions.size()), draws_(program.instructions.size()) {
  schemas_.reserve(program.ops.size());
  for (const Op& op : program.ops) schemas_.push_back(shared_schema(op.schema));

  Analysis analysis(program, schemas_);
  std::vector<ValueId> first_of_class;
  for (size_t i = 0; i < argument_classes.size() && i < program.arguments.size(); ++i) {
    size_t number = static_cast<size_t>(argument_classes[i]);
    if (number >= first_of_class.size()) first_of_class.resize(number + 1, kNoValue);
    if (first_of_class[number] == kNoValue) first_of_class[number] = program.arguments[i].value;
    analysis.join(first_of_class[number], program.arguments[i].value);
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) analysis.add(i);

  std::vector<int> number_of_set(program.num_values, -1);
  groups_.resize(program.num_values);
  for (ValueId value = 0; value < program.num_values; ++value) {
    int& number = number_of_set[analysis.find(value)];
    if (number < 0) number = num_groups_++;
    groups_[value] = number;
  }

  written_.resize(num_groups_);
  writes_.resize(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (ValueId value : analysis.written(i)) {
      writes_[i].push_back(groups_[value]);
      written_[groups_[value]] = true;
    }
    std::sort(writes_[i].begin(), writes_[i].end());
    writes_[i].erase(std::unique(writes_[i].begin(), writes_[i].end()), writes_[i].end());

    const Instruction& instruction = program.instructions[i];
    acts_[i] = (schema(instruction).results.empty() && !schema(instruction).writes()) ||
               is_communication(schema(instruction).name) || schema(instruction).name == kNext.name;
    draws_[i] = is_random(schema(instruction));
    for (int32_t body : instruction.bodies) {
      acts_[i] = acts_[i] || analysis.effects(body).acts;
      draws_[i] = draws_[i] || analysis.effects(body).draws;
    }
  }

  // A class is what is one group out here, for any of the callers; what comes from nowhere is a class of its own.
  std::vector<UnionFind> classes;
  for (const Program& body : program.bodies) classes.emplace_back(body.arguments.size());
  for (const Instruction& instruction : program.instructions) {
    for (size_t position = 0; position < instruction.bodies.size(); ++position) {
      const std::vector<ValueId> inputs = body_inputs(program, instruction, position);
      std::vector<std::pair<int, int>> by_group;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != kNoValue) by_group.emplace_back(groups_[inputs[i]], static_cast<int>(i));
      }
      std::sort(by_group.begin(), by_group.end());
      for (size_t i = 1; i < by_group.size(); ++i) {
        if (by_group[i].first != by_group[i - 1].first) continue;
        classes[instruction.bodies[position]].join(by_group[i].second, by_group[i - 1].second);
      }
    }
  }
  body_classes_.resize(program.bodies.size());
  for (size_t b = 0; b < program.bodies.size(); ++b) {
    for (size_t i = 0; i < program.bodies[b].arguments.size(); ++i) {
      body_classes_[b].push_back(classes[b].find(static_cast<int>(i)));
    }
  }
}

const Aliases& BodyAliases::of(const Program& program, const Aliases& outside, size_t number) {
  const Program& body = program.bodies[number];
  const auto known = known_.find(&body);
  if (known != known_.end()) return known->second;
  return known_.emplace(&body, Aliases(body, outside.argument_classes(number))).first->second;
}

bool Aliases::writes(size_t instruction, int group) const {
  return std::binary_search(writes_[instruction].begin(), writes_[instruction].end(), group);
}

}  // namespace muster
