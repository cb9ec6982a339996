#include "muster/graph/wire_forms.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "muster/graph/aliases.h"

namespace muster {
namespace {

using MaybeForm = std::optional<WireForm>;

// What is the same in both.
WireForm common(const WireForm& a, const WireForm& b) {
  return {a.type == b.type ? a.type : WireType::kAsIs, a.deflate && b.deflate, a.same_machine && b.same_machine};
}

void add(MaybeForm& known, const WireForm& form) { known = known ? common(*known, form) : form; }

// A value among the arguments of an instruction.
struct Use {
  ValueId value;
  size_t argument;
  std::optional<size_t> place{};  // in a list
  size_t length = 0;              // of that

  // Ops on lists do the same to each place of all of them.
  bool meets(const Use& other) const {
    const bool side_by_side = place && other.place && argument != other.argument && length == other.length;
    return !side_by_side || *place == *other.place;
  }
};

std::vector<Use> uses_of(const Instruction& instruction) {
  std::vector<Use> uses;
  for (size_t a = 0; a < instruction.arguments.size(); ++a) {
    const auto& value = instruction.arguments[a].value;
    if (const auto* ref = std::get_if<ValueRef>(&value)) uses.push_back({ref->id, a});
    const auto* list = std::get_if<ArgumentList>(&value);
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      if (const auto* ref = std::get_if<ValueRef>(&(*list)[i].value)) uses.push_back({ref->id, a, i, list->size()});
    }
  }
  return uses;
}

// Follows the variables' forms forward through the instructions, and what is written to them back to the arguments.
class FormFinder {
 public:
  explicit FormFinder(const Program& part)
      : part_(part),
        aliases_(part),
        of_variable_(part.num_values),
        is_one_number_(part.num_values),
        form_(part.num_values),
        made_from_(part.num_values) {
    for (const VariableRef& variable : part.variables) {
      form_[variable.value] = variable.wire;
      of_variable_[variable.value] = true;
      is_one_number_[variable.value] = variable.spec.elements() == 1;
    }
    for (const ProgramArgument& argument : part.arguments) comes_in(argument.value);
    for (size_t i = 0; i < part_.instructions.size(); ++i) follow(i);
  }

  // By the number of the edge.
  std::map<int64_t, WireForm> edges() const {
    std::map<int64_t, WireForm> forms;
    for (const auto& [edge, place] : received_) forms[edge] = coming_[place].value_or(WireForm{});
    for (const auto& [edge, value] : sent_) forms[edge] = form_[value].value_or(WireForm{});
    return forms;
  }

  WireForms forms() const {
    WireForms forms;
    for (size_t i = 0; i < part_.arguments.size(); ++i) forms.arguments.push_back(coming_[i].value_or(WireForm{}));
    for (ValueId output : part_.outputs) {
      forms.outputs.push_back(output >= 0 ? form_[output].value_or(WireForm{}) : WireForm{});
    }
    auto plain = [](const WireForm& form) { return form.plain(); };
    if (std::all_of(forms.arguments.begin(), forms.arguments.end(), plain) &&
        std::all_of(forms.outputs.begin(), forms.outputs.end(), plain)) {
      return {};
    }
    return forms;
  }

 private:
  void comes_in(ValueId value) {
    made_from_[value] = {coming_.size()};
    coming_.emplace_back();
  }

  void follow(size_t number) {
    const Instruction& instruction = part_.instructions[number];
    const std::string& name = part_.op_of(instruction).name;
    if (name == kReceive.name) {
      received_[std::get<int64_t>(instruction.arguments[0].value)] = coming_.size();
      return comes_in(instruction.results[0][0]);
    }
    if (name == kSend.name) {
      sent_[std::get<int64_t>(instruction.arguments[1].value)] = std::get<ValueRef>(instruction.arguments[0].value).id;
      return;
    }
    const std::vector<Use> uses = uses_of(instruction);
    auto written = [&](const Use& use) { return aliases_.writes(number, aliases_.group(use.value)); };
    const bool writes_variable = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return of_variable_[use.value] && !is_one_number_[use.value] && written(use);
    });
    for (const Use& use : uses) {
      if (of_variable_[use.value]) continue;
      for (const Use& other : uses) {
        if (!of_variable_[other.value] || !use.meets(other) || (writes_variable && !written(other))) continue;
        if (is_one_number_[other.value]) continue;  // it travels as it is, and may be beside what does not
        WireForm form = form_[other.value].value_or(WireForm{});
        if (!written(other)) form.type = WireType::kAsIs;
        for (size_t argument : made_from_[use.value]) add(coming_[argument], form);
      }
    }
    for (const auto& values : instruction.results) {
      for (size_t place = 0; place < values.size(); ++place) {
        if (values[place] == kNoValue) continue;
        const Use result{values[place], instruction.arguments.size(), place, values.size()};
        for (const Use& use : uses) {
          if (!use.meets(result) && values.size() > 1) continue;
          if (form_[use.value]) add(form_[result.value], *form_[use.value]);
          if (of_variable_[use.value] && aliases_.group(use.value) == aliases_.group(result.value)) {
            of_variable_[result.value] = true;
            is_one_number_[result.value] = is_one_number_[use.value];
          }
          if (!writes_variable) {
            made_from_[result.value].insert(made_from_[use.value].begin(), made_from_[use.value].end());
          }
        }
      }
    }
  }

  const Program& part_;
  const Aliases aliases_;
  std::vector<bool> of_variable_;            // by value: it is a variable, or shows one
  std::vector<bool> is_one_number_;          // by value: it is a variable with one element, such as a count of steps
  std::vector<MaybeForm> form_;              // by value
  std::vector<std::set<size_t>> made_from_;  // by value: what comes in
  std::vector<MaybeForm> coming_;            // the arguments, then what is received
  std::map<int64_t, size_t> received_;       // by edge: which of those
  std::map<int64_t, ValueId> sent_;          // by edge
};

bool has_forms(const Program& part) {
  return std::any_of(part.variables.begin(), part.variables.end(),
                     [](const VariableRef& variable) { return !variable.wire.plain(); });
}

}  // namespace

WireForms wire_forms(const Program& part) { return has_forms(part) ? FormFinder(part).forms() : WireForms{}; }

void give_forms_to_edges(std::vector<Program>& parts) {
  std::map<int64_t, WireForm> forms;
  for (const Program& part : parts) {
    if (!has_forms(part)) continue;
    for (const auto& [edge, form] : FormFinder(part).edges()) {
      if (form.plain()) continue;
      const auto [known, is_new] = forms.try_emplace(edge, form);
      if (!is_new) known->second = common(known->second, form);
    }
  }
  for (Program& part : parts) {
    for (Instruction& instruction : part.instructions) {
      if (part.op_of(instruction).name != kReceive.name) continue;
      const auto found = forms.find(std::get<int64_t>(instruction.arguments[0].value));
      if (found != forms.end()) instruction.arguments[2].value = int64_t{found->second.number()};
    }
  }
}

}  // namespace muster
