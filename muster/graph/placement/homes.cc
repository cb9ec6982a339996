#include "muster/graph/placement/homes.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "muster/graph/op_traits.h"

namespace muster {
std::string task_of_device(const std::string& device) { return device.substr(0, device.rfind("/device:")); }

void add_tasks(const Program& program, std::set<std::string>& tasks) {
  for (const Instruction& instruction : program.instructions) {
    tasks.insert(task_of_device(program.devices[instruction.device]));
  }
  for (const Program& body : program.bodies) add_tasks(body, tasks);
}

Homes::Homes(const Program& program, const std::string& driver, const std::map<ValueId, VariableRef>& remote_variables)
    : home(program.num_values) {
  auto task_at = [&](int32_t device) { return task_of_device(program.devices[device]); };
  for (const ProgramArgument& argument : program.arguments) {
    home[argument.value] = remote_variables.contains(argument.value) ? task_at(argument.device) : driver;
  }
  for (const VariableRef& variable : program.variables) home[variable.value] = task_at(variable.device);
  for (const Instruction& instruction : program.instructions) {
    const std::string named = task_at(instruction.device);
    std::string where = named;
    bool several = false;
    const std::string& op = program.op_of(instruction).name;
    if (op == kCopy.name) {
      // A copy to another task is a snapshot where the value is; the way is added where it is used.
      const std::string& source = home[std::get<ValueRef>(instruction.arguments[0].value).id];
      if (!source.empty()) where = source;
    } else if (is_control(op)) {
      std::set<std::string> tasks{named};
      for (int32_t body : instruction.bodies) add_tasks(program.bodies[body], tasks);
      several = tasks.size() > 1;
      if (several) where = driver;
    }
    for (const auto& values : instruction.results) {
      for (ValueId value : values) {
        if (value != kNoValue) home[value] = where;
      }
    }
    task.push_back(std::move(where));
    several_tasks.push_back(several);
  }
}

namespace {

// Whether nobody but the driver's own results waits for the instruction: no other task, nothing that has an effect, and
// no memory that such a one works on afterwards.
std::vector<bool> only_for_results(const Program& program, const Aliases& aliases, const Homes& homes,
                                   const std::string& driver) {
  std::vector<bool> result(program.instructions.size(), false);
  std::vector<bool> awaited(program.num_values, false);
  std::vector<bool> read_later(aliases.num_groups(), false), written_later(aliases.num_groups(), false);
  for (size_t number = program.instructions.size(); number-- > 0;) {
    const Instruction& instruction = program.instructions[number];
    const std::string& op = program.op_of(instruction).name;
    bool needed = homes.task[number] != driver || aliases.acts(number) || aliases.draws(number) || is_control(op) ||
                  op == kNext.name;
    for (const auto& values : instruction.results) {
      for (ValueId value : values) needed = needed || (value != kNoValue && awaited[value]);
    }
    auto for_each_operand = [&](const auto& visit) {
      for (const Argument& argument : instruction.arguments) for_each_value(argument, visit);
    };
    for_each_operand([&](ValueId id) {
      const int group = aliases.group(id);
      needed = needed || written_later[group] || (aliases.writes(number, group) && read_later[group]);
    });
    result[number] = !needed;
    if (!needed) continue;
    for_each_operand([&](ValueId id) {
      awaited[id] = true;
      const int group = aliases.group(id);
      (aliases.writes(number, group) ? written_later : read_later)[group] = true;
    });
  }
  return result;
}

}  // namespace

std::vector<size_t> order_by_rounds(const Program& program, const Aliases& aliases, const Homes& homes,
                                    const std::string& driver) {
  // The answers that must have come before a value is there, a group of memory is read, or is written.
  std::vector<int> of_value(program.num_values, 0), reads(aliases.num_groups(), 0), writes(aliases.num_groups(), 0);
  std::vector<int> rounds;
  int last_effect = 0;
  for (size_t number = 0; number < program.instructions.size(); ++number) {
    const Instruction& instruction = program.instructions[number];
    int round = 0;
    auto for_each_operand = [&](const auto& visit) {
      for (const Argument& argument : instruction.arguments) for_each_value(argument, visit);
    };
    for_each_operand([&](ValueId id) {
      const int group = aliases.group(id);
      int there = std::max(of_value[id], writes[group]);
      if (aliases.writes(number, group)) there = std::max(there, reads[group]);
      const bool answer = homes.task[number] == driver && !homes.home[id].empty() && homes.home[id] != driver;
      round = std::max(round, there + (answer ? 1 : 0));
    });
    if (aliases.acts(number) || aliases.draws(number) || program.op_of(instruction).name == kNext.name) {
      round = last_effect = std::max(round, last_effect);
    }
    for_each_operand([&](ValueId id) {
      const int group = aliases.group(id);
      int& touched = aliases.writes(number, group) ? writes[group] : reads[group];
      touched = std::max(touched, round);
    });
    for (const auto& values : instruction.results) {
      for (ValueId value : values) {
        if (value != kNoValue) of_value[value] = round;
      }
    }
    rounds.push_back(round);
  }
  std::vector<size_t> order(rounds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const std::vector<bool> last = only_for_results(program, aliases, homes, driver);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(rounds[a], static_cast<bool>(last[a])) < std::pair(rounds[b], static_cast<bool>(last[b]));
  });
  return order;
}

}  // namespace muster
