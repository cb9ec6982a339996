#include "muster/graph/placement/split.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "muster/base/status.h"
#include "muster/graph/aliases.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/placement/homes.h"
#include "muster/graph/placement/part_writer.h"
#include "muster/graph/wire_forms.h"

namespace muster {
namespace {

// In place of the number of a segment.
constexpr int kDriver = -1;
constexpr int kNowhere = -2;  // a view: made again in every segment that looks through it

// A run of instructions that become one part.
struct Segment {
  std::string task;
  std::vector<size_t> instructions{};
  std::set<int> needs{};                                         // segments that must come before this one
  std::vector<ValueId> inputs{};                                 // values of the driver
  std::vector<ValueId> outputs{};                                // values that the driver wants
  std::map<std::pair<ValueId, int>, int64_t> sent{};             // value and the segment that wants it -> edge
  std::map<ValueId, std::pair<std::string, int64_t>> fetched{};  // value -> the task that has it, edge
  std::optional<size_t> after{};                                 // an instruction of the driver that comes before
  bool closed = false;                                           // nothing joins it any more
};

// What the splits of a program and of its bodies share.
struct Whole {
  std::string driver;
  std::vector<Program> parts{};
  int64_t edges = 0;
};

// Splits one program, the outermost or a body that the driver runs.
class Splitter {
 public:
  // `variables` says which arguments of a body stand for variables of other tasks.
  Splitter(const Program& program, Whole& whole, std::map<ValueId, VariableRef> variables, bool is_body = false,
           const std::vector<int>& argument_classes = {})
      : in_(program),
        whole_(whole),
        is_body_(is_body),
        aliases_(program, argument_classes),
        remote_variables_(with_variables_of(program, std::move(variables), whole.driver)),
        homes_(program, whole.driver, remote_variables_),
        order_(order_by_rounds(program, aliases_, homes_, whole.driver)),
        device_(program.num_values),
        segment_(program.num_values, kDriver),
        seen_(program.num_values, 0),
        where_(program.instructions.size(), kDriver) {}

  Program run() {
    bind_inputs();
    for (size_t i : order_) assign(i);
    for (ValueId output : in_.outputs) {
      if (output >= 0) want(output, kDriver);
    }
    return emit();
  }

 private:
  const std::string& home(ValueId value) const { return homes_.home[value]; }
  bool is_constant(ValueId value) const { return home(value).empty(); }
  const std::string& device_name(int32_t device) const { return in_.devices[device]; }

  static std::map<ValueId, VariableRef> with_variables_of(const Program& program, std::map<ValueId, VariableRef> known,
                                                          const std::string& driver) {
    for (const VariableRef& variable : program.variables) {
      if (task_of_device(program.devices[variable.device]) != driver) known.emplace(variable.value, variable);
    }
    return known;
  }

  void bind_inputs() {
    for (const ProgramArgument& argument : in_.arguments) device_[argument.value] = device_name(argument.device);
    for (const VariableRef& variable : in_.variables) device_[variable.value] = device_name(variable.device);
  }

  void assign(size_t number) {
    const Instruction& instruction = in_.instructions[number];
    const std::string& task = homes_.task[number];
    if (task != whole_.driver && is_view(in_.op_of(instruction).name) && shows_its_task(instruction, task)) {
      where_[number] = kNowhere;
      for (const auto& values : instruction.results) {
        for (ValueId value : values) {
          if (value == kNoValue) continue;
          device_[value] = device_name(instruction.device);
          view_[value] = number;
        }
      }
      return;
    }
    const int segment = task == whole_.driver ? kDriver : segment_for(number, task);
    where_[number] = segment;
    if (segment != kDriver) segments_[segment].instructions.push_back(number);
    follow_variables(number);
    const bool whole_here = !homes_.several_tasks[number];
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId id) {
        if (whole_here || !stands_for_variable(id)) want(id, segment);
      });
    }
    const bool moved =
        in_.op_of(instruction).name == kCopy.name && task_of_device(device_name(instruction.device)) != task;
    for (const auto& values : instruction.results) {
      for (ValueId value : values) {
        if (value == kNoValue) continue;
        if (moved) arrival_[value] = device_name(instruction.device);
        device_[value] =
            moved ? device_[std::get<ValueRef>(instruction.arguments[0].value).id] : device_name(instruction.device);
        segment_[value] = segment;
        seen_[value] = driver_needs_.size();
      }
    }
    for_each_group(number, [&](int group, bool write) {
      Touch& touch = touched_[{task, group}];
      (write ? touch.written : touch.read) = std::max(write ? touch.written : touch.read, segment);
    });
    if (homes_.several_tasks[number]) close_segments(number);
    if (segment == kDriver) return;
    // What is written is from now on found where it was written.
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId id) {
        const ValueId memory = root(id);
        if (!stands_for_variable(memory) && aliases_.writes(number, aliases_.group(id))) segment_[memory] = segment;
      });
    }
  }

  // What control flow returns may be the memory of a variable. Elsewhere it is a copy, and a write to that would be
  // lost.
  void follow_variables(size_t number) {
    const Instruction& instruction = in_.instructions[number];
    const std::string& name = in_.op_of(instruction).name;
    for (size_t a = 0; a < instruction.arguments.size(); ++a) {
      for_each_value(instruction.arguments[a], [&](ValueId id) {
        const ValueId memory = root(id);
        const int group = aliases_.group(id);
        if (const auto returned = returned_variables_.find(memory); returned != returned_variables_.end()) {
          const bool writes =
              is_control(name) ? aliases_.writes(number, group) : aliases_.schema(instruction).arguments[a].written;
          if (writes && (where_[number] == kDriver || where_[number] != segment_[memory])) {
            throw invalid_argument("program \"", in_.name, "\": ", name, " writes to what ", returned->second,
                                   " has returned, which may be a variable of ", home(memory),
                                   "; control flow over several tasks can only write variables");
          }
        } else if (!is_control(name) || !stands_for_variable(memory)) {
          return;
        }
        for (const auto& results : instruction.results) {
          for (ValueId result : results) {
            if (result != kNoValue && aliases_.group(result) == group) returned_variables_.try_emplace(result, name);
          }
        }
      });
    }
  }

  // The bodies of control flow that the driver runs have parts of their own. Of the tasks that those are for, what
  // comes before is in segments that begin before it, with all that they need, and what comes after is in others.
  void close_segments(size_t number) {
    std::set<std::string> tasks;
    for (int32_t body : in_.instructions[number].bodies) add_tasks(in_.bodies[body], tasks);
    for (const std::string& task : tasks) {
      const auto mine = by_task_.find(task);
      if (mine != by_task_.end()) {
        for (int segment : closure({mine->second.begin(), mine->second.end()})) segments_[segment].closed = true;
      }
      last_control_[task] = {number, driver_needs_.size()};
    }
  }

  bool shows_its_task(const Instruction& view, const std::string& task) const {
    const auto* ref = std::get_if<ValueRef>(&view.arguments[0].value);
    return ref != nullptr && home(ref->id) == task;
  }

  // The value that a view, or a view of a view, shows.
  ValueId root(ValueId value) const {
    for (auto view = view_.find(value); view != view_.end(); view = view_.find(value)) {
      value = std::get<ValueRef>(in_.instructions[view->second].arguments[0].value).id;
    }
    return value;
  }

  bool stands_for_variable(ValueId value) const { return remote_variables_.contains(value); }

  template <class Visit>
  void for_each_group(size_t number, const Visit& visit) const {
    for (const Argument& argument : in_.instructions[number].arguments) {
      for_each_value(argument, [&](ValueId id) {
        const int group = aliases_.group(id);
        visit(group, aliases_.writes(number, group));
      });
    }
  }

  // The first segment of the task that the instruction may join, or a new one.
  int segment_for(size_t number, const std::string& task) {
    std::vector<int>& mine = by_task_[task];
    int first = mine.empty() ? kDriver : mine.front();
    std::set<int> needs;
    for (const Argument& argument : in_.instructions[number].arguments) {
      for_each_value(argument, [&](ValueId id) {
        if (is_constant(id)) return;
        if (home(id) == task) {
          first = std::max(first, segment_[root(id)]);
        } else {
          needs.merge(needs_of(id));
        }
      });
    }
    for_each_group(number, [&](int group, bool write) {
      auto touch = touched_.find({task, group});
      if (touch == touched_.end()) return;
      first = std::max(first, touch->second.written);
      if (write) first = std::max(first, touch->second.read);
    });
    const std::set<int> before = closure(needs);
    for (int candidate : mine) {
      if (candidate < first || before.contains(candidate) || segments_[candidate].closed) continue;
      segments_[candidate].needs.insert(needs.begin(), needs.end());
      return candidate;
    }
    if (!mine.empty()) needs.insert(mine.back());
    return add_segment(task, std::move(needs));
  }

  // What comes after control flow needs all that the driver has waited for until then.
  int add_segment(const std::string& task, std::set<int> needs) {
    const int made = static_cast<int>(segments_.size());
    Segment& segment = segments_.emplace_back(Segment{.task = task, .needs = std::move(needs)});
    if (auto control = last_control_.find(task); control != last_control_.end()) {
      segment.after = control->second.instruction;
      segment.needs.insert(driver_needs_.begin(),
                           driver_needs_.begin() + static_cast<std::ptrdiff_t>(control->second.waited_for));
    }
    by_task_[task].push_back(made);
    return made;
  }

  // The segments that must have run before `value` is there. The driver works in order, so a value of its own needs
  // all that the driver has waited for until then.
  std::set<int> needs_of(ValueId value) {
    if (home(value) != whole_.driver) {
      const int maker = segment_[root(value)];
      return {maker == kDriver ? reader_of(root(value)) : maker};
    }
    return {driver_needs_.begin(), driver_needs_.begin() + static_cast<std::ptrdiff_t>(seen_[value])};
  }
  std::set<int> closure(std::set<int> segments) const {
    std::vector<int> open(segments.begin(), segments.end());
    while (!open.empty()) {
      const int segment = open.back();
      open.pop_back();
      for (int need : segments_[segment].needs) {
        if (segments.insert(need).second) open.push_back(need);
      }
    }
    return segments;
  }

  // Notes that `value` must get to the segment, or to the driver.
  void want(ValueId value, int segment) {
    if (is_constant(value)) return;
    const std::string& to = segment == kDriver ? whole_.driver : segments_[segment].task;
    if (home(value) == to) {
      const ValueId memory = root(value);  // the segment looks at it through views of its own
      const int maker = segment_[memory];
      if (segment == kDriver || maker == segment || stands_for_variable(memory)) return;
      return fetch(memory, maker, segment);
    }
    if (home(value) == whole_.driver) {
      auto& inputs = segments_[segment].inputs;
      if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return;
      // A task that has been given it once keeps it for its later parts.
      if (auto earlier = holder(value, segment)) return fetch(value, *earlier, segment);
      inputs.push_back(value);
      return;
    }
    int maker = segment_[root(value)];
    if (maker == kDriver) maker = reader_of(root(value));
    if (segment != kDriver) {
      if (auto earlier = holder(value, segment)) maker = *earlier;
      segments_[segment].needs.insert(maker);
      return fetch(value, maker, segment);
    }
    auto& outputs = segments_[maker].outputs;
    if (std::find(outputs.begin(), outputs.end(), value) == outputs.end()) outputs.push_back(value);
    if (std::find(driver_needs_.begin(), driver_needs_.end(), maker) == driver_needs_.end()) {
      driver_needs_.push_back(maker);
    }
  }

  void fetch(ValueId value, int from, int to) {
    if (from == to || segments_[to].fetched.contains(value)) return;
    segments_[from].sent[{value, to}] = whole_.edges;
    segments_[to].fetched[value] = {segments_[from].task, whole_.edges};
    ++whole_.edges;
  }

  // An earlier segment of the same task that was given the value.
  std::optional<int> holder(ValueId value, int segment) const {
    for (int earlier : by_task_.at(segments_[segment].task)) {
      if (earlier >= segment) break;
      const auto& inputs = segments_[earlier].inputs;
      if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return earlier;
      if (segments_[earlier].fetched.contains(value)) return earlier;
    }
    return std::nullopt;
  }

  // A variable that is wanted elsewhere without a copy instruction: the last part of its task that may touch it shows
  // it.
  int reader_of(ValueId variable) {
    const std::string& task = home(variable);
    auto touch = touched_.find({task, aliases_.group(variable)});
    const int after = touch == touched_.end() ? kDriver : touch->second.written;
    for (int candidate : by_task_[task]) {
      if (candidate >= after && !segments_[candidate].closed) return candidate;
    }
    return add_segment(task, {});
  }

  // ---- Writing
  Program emit() {
    PartWriter driver(in_, in_.name, whole_.driver);
    for (const ProgramArgument& argument : in_.arguments) {
      if (remote_variables_.contains(argument.value)) continue;
      driver.add_argument(argument.value, driver_device(device_[argument.value]));
      driver.program().arguments.back().spec = argument.spec;
      driver.program().arguments.back().any = argument.any;
    }
    for (const VariableRef& variable : in_.variables) {
      if (home(variable.value) == whole_.driver) driver.add_variable(variable.value, variable, device_[variable.value]);
    }
    std::vector<bool> begun(segments_.size());
    auto begin_ready = [&] {
      for (bool again = true; again;) {
        again = false;
        for (size_t s = 0; s < segments_.size(); ++s) {
          if (begun[s] || !ready(static_cast<int>(s), begun, driver)) continue;
          begin(static_cast<int>(s), driver);
          begun[s] = again = true;
        }
      }
    };
    begin_ready();
    for (size_t i : order_) {
      if (where_[i] != kDriver) continue;
      add_driver_instruction(i, driver);
      done_.insert(i);
      begin_ready();
    }
    if (!std::all_of(begun.begin(), begun.end(), [](bool b) { return b; })) {
      throw Error(Status(StatusCode::kInternal, str_cat("program \"", in_.name, "\": a part would never begin")));
    }
    Program made = std::move(driver.program());
    for (ValueId output : in_.outputs) made.outputs.push_back(output < 0 ? output : driver.use(output));
    return made;
  }

  bool ready(int segment, const std::vector<bool>& begun, const PartWriter& driver) const {
    for (int need : segments_[segment].needs) {
      if (!begun[need]) return false;
    }
    if (segments_[segment].after && !done_.contains(*segments_[segment].after)) return false;
    const auto& inputs = segments_[segment].inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](ValueId value) { return driver.knows(value); });
  }

  // The device of `task` that a copy between tasks was for.
  std::string arrival(ValueId value, const std::string& task, const std::string& otherwise) const {
    const auto found = arrival_.find(value);
    return found != arrival_.end() && task_of_device(found->second) == task ? found->second : otherwise;
  }

  // Values that are not the driver's appear on the device where the driver's own work is done.
  std::string driver_device(const std::string& wish) const {
    if (task_of_device(wish) == whole_.driver) return wish;
    for (const std::string& device : in_.devices) {
      if (task_of_device(device) == whole_.driver) return device;
    }
    return whole_.driver + "/device:CPU:0";
  }

  void begin(int number, PartWriter& driver) {
    const Segment& segment = segments_[number];
    const std::string here = device_of(segment);
    PartWriter part(in_, str_cat(in_.name, " at ", segment.task), segment.task);
    ArgumentList inputs;
    for (ValueId value : segment.inputs) {
      part.add_argument(value, arrival(value, segment.task, here));
      inputs.push_back({ValueRef{driver.use(value)}});
    }
    for (const auto& [value, source] : segment.fetched) {
      const bool written = writes(segment.instructions, value);
      const std::string there = arrival(value, segment.task, here);
      const ValueId received = written ? part.program().new_value() : part.define(value);
      part.add(kReceive, {{source.second}, {source.first}, {int64_t{0}}}, {{received}}, there);
      // Tasks of one process hand on the memory itself, which others may have got, too.
      if (written) part.add(kCopy, {{ValueRef{received}}}, {{part.define(value)}}, there);
    }
    for (size_t i : segment.instructions) {
      for (const Argument& argument : in_.instructions[i].arguments) {
        for_each_value(argument, [&](ValueId id) { show(id, part); });
      }
      add_at_home(in_.instructions[i], part);
    }
    std::map<ValueId, ValueId> now;  // snapshots, one for all who want it
    auto at_the_end = [&](ValueId value) {
      show(value, part);
      auto [known, is_new] = now.try_emplace(value, kNoValue);
      if (is_new) known->second = part.snapshot(value, here);
      return known->second;
    };
    for (const auto& [reader, edge] : segment.sent) {
      part.add(kSend, {{ValueRef{at_the_end(reader.first)}}, {edge}}, {}, here);
    }
    for (ValueId value : segment.outputs) part.program().outputs.push_back(at_the_end(value));
    std::vector<ValueId> results;
    std::vector<std::pair<ValueId, ValueId>> own;  // what is written by the driver or around this body is not shared
    // What is wanted on another device of the driver than the rest is copied there.
    const std::string middle = driver_device("");
    auto wanted_at = [&](ValueId value) { return arrival(value, whole_.driver, middle); };
    const std::string all_at = segment.outputs.empty() ? middle : wanted_at(*segment.outputs.begin());
    for (ValueId value : segment.outputs) {
      const bool comes_out = is_body_ && std::count(in_.outputs.begin(), in_.outputs.end(), value) > 0;
      if (comes_out || wanted_at(value) != all_at || writes(driver_instructions(), value)) {
        results.push_back(driver.program().new_value());
        own.emplace_back(results.back(), value);
      } else {
        results.push_back(driver.define(value));
      }
    }
    part.program().seed = in_.seed + whole_.parts.size() + 1;
    driver.add(kRemote, {{static_cast<int64_t>(whole_.parts.size())}, {std::move(inputs)}}, {std::move(results)},
               all_at);
    for (const auto& [shared, value] : own) {
      driver.add(kCopy, {{ValueRef{shared}}}, {{driver.define(value)}}, wanted_at(value));
    }
    whole_.parts.push_back(std::move(part.program()));
  }

  bool writes(const std::vector<size_t>& instructions, ValueId value) const {
    return std::any_of(instructions.begin(), instructions.end(),
                       [&](size_t i) { return aliases_.writes(i, aliases_.group(value)); });
  }
  std::vector<size_t> driver_instructions() const {
    std::vector<size_t> all;
    for (size_t i = 0; i < where_.size(); ++i) {
      if (where_[i] == kDriver) all.push_back(i);
    }
    return all;
  }

  // Makes sure that the part has the value: a variable of its task, or a view.
  void show(ValueId id, PartWriter& part) const {
    if (part.knows(id)) return;
    if (auto view = view_.find(id); view != view_.end()) {
      const Instruction& instruction = in_.instructions[view->second];
      show(std::get<ValueRef>(instruction.arguments[0].value).id, part);
      return part.add_instruction(instruction);
    }
    auto variable = remote_variables_.find(id);
    if (variable != remote_variables_.end() && home(id) == part.program().task) {
      part.add_variable(id, variable->second, device_[id]);
    }
  }

  std::string device_of(const Segment& segment) const {
    for (size_t i : segment.instructions) {
      const std::string& device = device_name(in_.instructions[i].device);
      if (task_of_device(device) == segment.task) return device;
    }
    for (const auto& [value, variable] : remote_variables_) {
      if (home(value) == segment.task) return device_[value];
    }
    return segment.task + "/device:CPU:0";
  }

  // A copy to another task becomes a copy on its own.
  void add_at_home(const Instruction& instruction, PartWriter& part) const {
    const std::string& home = part.program().task;
    if (in_.op_of(instruction).name == kCopy.name && task_of_device(device_name(instruction.device)) != home) {
      const ValueId source = std::get<ValueRef>(instruction.arguments[0].value).id;
      part.add(kCopy, {{ValueRef{part.use(source)}}}, {{part.define(instruction.results[0][0])}}, device_[source]);
      return;
    }
    part.add_instruction(instruction);
  }

  void add_driver_instruction(size_t number, PartWriter& driver) {
    const Instruction& instruction = in_.instructions[number];
    if (!homes_.several_tasks[number]) return add_at_home(instruction, driver);
    Instruction copy = instruction;
    const std::string here = driver_device(device_name(instruction.device));
    // Inputs that are variables of other tasks are known there by name.
    std::vector<Program> bodies;
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = in_.bodies[instruction.bodies[b]];
      const std::vector<ValueId> inputs = body_inputs(in_, instruction, b);
      const Aliases inside(body);
      std::map<ValueId, VariableRef> variables;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] == kNoValue) continue;
        const ValueId argument = body.arguments[i].value;
        if (auto variable = remote_variables_.find(inputs[i]); variable != remote_variables_.end()) {
          variables.emplace(argument, variable->second);
        } else if (inside.written(inside.group(argument)) &&
                   task_of_device(body.devices[body.arguments[i].device]) != whole_.driver) {
          throw invalid_argument("program \"", in_.name, "\": a body of ", in_.op_of(instruction).name,
                                 " writes to memory on ", body.devices[body.arguments[i].device],
                                 ", which is not a variable; control flow over several tasks can only write variables");
        }
      }
      bodies.push_back(Splitter(body, whole_, std::move(variables), /*is_body=*/true,
                                aliases_.argument_classes(instruction.bodies[b]))
                           .run());
    }
    auto drop_variables = [&](Argument& argument) {
      auto* list = std::get_if<ArgumentList>(&argument.value);
      if (list == nullptr) return;
      std::erase_if(*list, [&](const Argument& element) {
        const auto* ref = std::get_if<ValueRef>(&element.value);
        return ref != nullptr && stands_for_variable(ref->id);
      });
    };
    for (Argument& argument : copy.arguments) drop_variables(argument);
    copy.bodies.clear();
    driver.add_instruction(copy);
    Program& made = driver.program();
    made.instructions.back().device = made.intern_device(here);
    for (Program& body : bodies) {
      made.instructions.back().bodies.push_back(static_cast<int32_t>(made.bodies.size()));
      made.bodies.push_back(std::move(body));
    }
  }

  struct Touch {
    int read = kDriver, written = kDriver;
  };
  struct Control {
    size_t instruction = 0;
    size_t waited_for = 0;  // how many of driver_needs_ come before it
  };

  const Program& in_;
  Whole& whole_;
  const bool is_body_;
  const Aliases aliases_;
  std::map<ValueId, VariableRef> remote_variables_;
  const Homes homes_;
  const std::vector<size_t> order_;         // of the instructions
  std::vector<std::string> device_;         // by value
  std::map<ValueId, std::string> arrival_;  // by result of a copy between tasks: the device that it was for
  std::vector<int> segment_;                // by value: the segment that makes it
  std::vector<size_t> seen_;                // by value of the driver: how many of driver_needs_ came before it
  std::vector<int> where_;                  // by instruction
  std::vector<Segment> segments_;
  std::map<std::string, std::vector<int>> by_task_;
  std::vector<int> driver_needs_;  // segments that the driver has waited for, in order
  std::map<std::pair<std::string, int>, Touch> touched_;
  std::map<ValueId, size_t> view_;                     // a view of another task's memory -> its instruction
  std::map<ValueId, std::string> returned_variables_;  // what may be a variable, by another name -> what returned it
  std::map<std::string, Control> last_control_;        // task -> the last one over several tasks whose bodies are there
  std::set<size_t> done_;                              // of the driver's instructions, while writing
};

void drop_waits(Program& program) {
  std::erase_if(program.instructions,
                [&](const Instruction& instruction) { return program.op_of(instruction).name == kWaitFor; });
  for (Program& body : program.bodies) drop_waits(body);
  for (Program& part : program.parts) drop_waits(part);
}

}  // namespace

Program split(Program program, const std::string& driver) {
  Whole whole{.driver = driver};
  Program made = Splitter(program, whole, {}).run();
  made.parts = std::move(whole.parts);
  drop_waits(made);
  give_forms_to_edges(made.parts);
  return made;
}

}  // namespace muster
