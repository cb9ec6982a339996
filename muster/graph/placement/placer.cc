#include "muster/graph/placement/placer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/aliases.h"
#include "muster/graph/device_set.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/placement/homes.h"
#include "muster/graph/placement/split.h"

namespace muster {
namespace {

// A device, interned so that places compare as pointers; null for a constant, which is wherever it is needed.
using Place = const std::string*;

// What the placement of a program and all its bodies shares.
struct Placement {
  DeviceSet devices;
  std::vector<PlacedOp>* placed;
  const PlacerOptions& options;
  std::string driver{};         // a task, or ""
  std::string driver_device{};  // one of its devices
  int bodies = 0;               // placed so far
  std::set<std::string> names{};
  // Wishes that gave way to the place of the memory, by wish and place: how many, and the first of them.
  std::map<std::pair<std::string, std::string>, std::pair<int, std::string>> overruled{};
  std::map<std::string, std::string> without_kernel{};  // ops that gave way: where they would have been

  Place intern(const std::string& device) { return &*names.insert(device).first; }
};

// Places one program; its bodies are placed by others of its kind.
// Invariant: every value that stands before the instruction at hand has its place in where_.
class ProgramPlacer {
 public:
  struct Result {
    Program program;
    std::vector<Place> outputs;
  };

  // `written_outside`: by value of the program (or empty), what the program around a body writes to.
  ProgramPlacer(Program program, Place default_device, const std::vector<int>& argument_classes,
                const std::vector<bool>& written_outside, Placement& all)
      : in_(std::move(program)),
        default_device_(default_device),
        aliases_(in_, argument_classes),
        all_(all),
        versions_(aliases_.num_groups()),
        last_write_(aliases_.num_groups(), -1),
        where_(in_.num_values) {
    for (size_t i = 0; i < in_.instructions.size(); ++i) {
      for (int group : aliases_.written_groups(i)) last_write_[group] = static_cast<int64_t>(i);
    }
    for (size_t value = 0; value < written_outside.size(); ++value) {
      if (written_outside[value]) last_write_[aliases_.group(static_cast<ValueId>(value))] = INT64_MAX;
    }
  }

  // `arguments` says where a body's arguments are; without it they are placed like everything else.
  Result run(const std::vector<Place>* arguments) {
    out_ = {
        .name = in_.name, .seed = in_.seed, .num_values = in_.num_values, .ops = in_.ops, .constants = in_.constants};
    for (size_t i = 0; i < in_.arguments.size(); ++i) {
      ProgramArgument argument = in_.arguments[i];
      where_[argument.value] = arguments ? (*arguments)[i] : resolve(argument.device, str_cat("argument ", i));
      argument.device = out_.intern_device(*where_[argument.value]);
      out_.arguments.push_back(std::move(argument));
    }
    for (VariableRef variable : in_.variables) {
      where_[variable.value] = resolve(variable.device, str_cat("variable \"", variable.name, "\""));
      variable.device = out_.intern_device(*where_[variable.value]);
      out_.variables.push_back(std::move(variable));
    }
    for (size_t i = 0; i < in_.instructions.size(); ++i) place(i);

    Result result;
    out_.outputs = in_.outputs;
    for (ValueId output : in_.outputs) result.outputs.push_back(output == kNoValue ? nullptr : where_[output]);
    result.program = std::move(out_);
    return result;
  }

 private:
  std::string who(size_t number) const {
    return str_cat("instruction ", number, " (", in_.op_of(in_.instructions[number]).name, ")");
  }

  Place resolve(int32_t device, const std::string& who) {
    if (device == 0) return default_device_;
    const std::string asker = str_cat("program \"", in_.name, "\", ", who);
    return all_.intern(all_.devices.resolve(in_.devices[device], *default_device_, asker));
  }

  void place(size_t number) {
    Instruction instruction = in_.instructions[number];
    if (is_control(in_.op_of(instruction).name)) {
      place_control(number, std::move(instruction));
    } else {
      place_plain(number, std::move(instruction));
    }
    for (int group : aliases_.written_groups(number)) ++versions_[group];
  }

  void place_plain(size_t number, Instruction instruction) {
    const Place wish = resolve(instruction.device, who(number));
    Place device = home_of(number, instruction);
    const char* why = instruction.device ? "requested" : "default device";
    if (const Place able = device ? device : wish; !has_kernel(instruction, able)) {
      device = without_kernel(number, able, /*bound=*/device != nullptr);
      why = "no kernel elsewhere";
    } else if (!device) {
      device = wish;
    } else if (wish != device || !instruction.device) {
      // That a view is where its memory is goes without saying.
      if (instruction.device && !aliases_.written_groups(number).empty()) overrule(*wish, *device, number);
      why = "with its memory";
    }
    if (in_.op_of(instruction).name != kCopy.name) {
      for (Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId& id) { bring(id, device); });
      }
    }
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (value != kNoValue) where_[value] = device;
      }
    }
    append(std::move(instruction), device, why);
  }

  bool has_kernel(const Instruction& instruction, Place device) const {
    return !all_.options.has_kernel ||
           all_.options.has_kernel(in_.op_of(instruction).name, *DeviceSpec::parse(*device).type);
  }

  // Where an instruction runs that cannot run on `device`, which it is `bound` to if its memory is there.
  Place without_kernel(size_t number, Place device, bool bound) {
    DeviceSpec other = DeviceSpec::parse(*device);
    const std::string type = *other.type;
    other.type = "CPU";
    other.index = 0;
    const std::string& op = in_.op_of(in_.instructions[number]).name;
    if (bound || type == "CPU" || !all_.options.soft_placement) {
      throw invalid_argument("program \"", in_.name, "\", ", who(number), ": libtorch has no kernel of ", op, " for a ",
                             type, ", but ", *device,
                             bound ? " is where the memory is that it works on" : " was asked for",
                             bound ? "" : " and soft placement is off", "; put it on a device of another type");
    }
    all_.without_kernel.try_emplace(op, *device);
    return all_.intern(all_.devices.resolve(other.to_string(), *default_device_, who(number)));
  }

  // Where the memory is that the instruction writes or shows in another shape; null if it does neither.
  Place home_of(size_t number, const Instruction& instruction) const {
    const OpSchema& schema = aliases_.schema(instruction);
    Place home = nullptr;
    for (size_t i = 0; i < schema.arguments.size(); ++i) {
      if (!schema.arguments[i].written) continue;
      for_each_value(instruction.arguments[i], [&](ValueId id) {
        if (!home) home = where_[id];
        if (!where_[id] || where_[id] == home) return;
        throw invalid_argument("program \"", in_.name, "\", ", who(number), " writes to memory on ", *home, " and on ",
                               *where_[id], ", but one instruction runs on one device");
      });
    }
    for (size_t i = 0; !home && i < schema.arguments.size(); ++i) {
      bool shown = std::any_of(schema.results.begin(), schema.results.end(), [&](const SchemaArgument& result) {
        return result.aliases.find_first_of(schema.arguments[i].aliases) != std::string::npos;
      });
      if (!shown) continue;
      for_each_value(instruction.arguments[i], [&](ValueId id) {
        if (!home) home = where_[id];
      });
    }
    return home;
  }

  void overrule(const std::string& wish, const std::string& device, size_t number) {
    auto& [count, first] = all_.overruled[{wish, device}];
    if (count++ == 0) first = str_cat("program \"", in_.name, "\", ", who(number));
  }

  // Memory of the task that begins the program, its variables included if they are apart.
  bool of_this_task(Place place) const {
    DeviceSpec device = DeviceSpec::parse(*place);
    const DeviceSpec here = DeviceSpec::parse(*default_device_);
    return device.job == here.job && device.task == here.task &&
           (device.replica == here.replica || device.replica == kApart || here.replica == kApart);
  }

  // Control flow runs where it wishes, else where the first memory is that its bodies write, if that is this task's: a
  // training loop belongs to its worker, not to a parameter server.
  void place_control(size_t number, Instruction instruction) {
    Place device = resolve(instruction.device, who(number));
    const char* why = instruction.device ? "requested" : "default device";
    // What the bodies write, or hand on to somebody who does: a copy would be other memory.
    auto stays = [&](ValueId id) {
      const int group = aliases_.group(id);
      return where_[id] &&
             (aliases_.writes(number, group) || (written_from(number, group) && returns(instruction, group)));
    };
    bool found = instruction.device != 0;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId id) {
        if (found || !stays(id) || !of_this_task(where_[id])) return;
        found = true;
        device = where_[id];
        why = "with its memory";
      });
    }

    auto inputs_for = [&](Place here) {
      std::vector<std::vector<Place>> inputs;  // per body: where its arguments are
      for (size_t b = 0; b < instruction.bodies.size(); ++b) {
        inputs.emplace_back();
        for (ValueId id : body_inputs(in_, instruction, b)) {
          inputs.back().push_back(id != kNoValue && stays(id) ? where_[id] : here);
        }
      }
      return inputs;
    };
    std::vector<std::vector<Place>> inputs = inputs_for(device);
    auto overruled = all_.overruled;
    const size_t placed = all_.placed == nullptr ? 0 : all_.placed->size();
    const bool several = !all_.driver.empty() && is_over_several_tasks(number, device, inputs);
    if (several && task_of_device(*device) != all_.driver) {
      device = all_.intern(all_.driver_device);
      why = "over several tasks";
      all_.overruled = std::move(overruled);  // they are placed once more
      if (all_.placed != nullptr) all_.placed->resize(placed);
      inputs = inputs_for(device);
    }
    for (Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId& id) {
        if (!stays(id)) bring(id, device);
      });
    }

    const std::vector<Place> outputs = place_bodies(number, instruction, device, inputs, several);
    size_t next = 0;
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (value != kNoValue) where_[value] = next < outputs.size() ? outputs[next] : device;
        ++next;
      }
    }
    append(std::move(instruction), device, why);
  }

  // Whether this instruction or a later one writes to the group, here or in the program around this one.
  bool written_from(size_t number, int group) const { return last_write_[group] >= static_cast<int64_t>(number); }

  // Whether a result of the instruction may be memory of this group.
  bool returns(const Instruction& instruction, int group) const {
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (value != kNoValue && aliases_.group(value) == group) return true;
      }
    }
    return false;
  }

  // The values of a body that are given to it or come out of it and are written to out here from then on.
  std::vector<bool> written_around(size_t number, size_t position) const {
    const Instruction& instruction = in_.instructions[number];
    const Program& body = in_.bodies[instruction.bodies[position]];
    std::vector<bool> written(body.num_values);
    auto note = [&](ValueId inside, ValueId outside) {
      if (inside != kNoValue && outside != kNoValue && written_from(number, aliases_.group(outside)))
        written[inside] = true;
    };
    const std::vector<ValueId> inputs = body_inputs(in_, instruction, position);
    for (size_t i = 0; i < inputs.size(); ++i) note(body.arguments[i].value, inputs[i]);
    size_t next = 0;
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (position == 0 || in_.op_of(instruction).name == kCond.name) {
          if (next < body.outputs.size()) note(body.outputs[next], value);
        }
        ++next;
      }
    }
    return written;
  }

  // Whether the bodies, called there with these inputs, work on another task, too, or on memory that stays there.
  bool is_over_several_tasks(size_t number, Place device, const std::vector<std::vector<Place>>& inputs) {
    std::set<std::string> tasks{task_of_device(*device)};
    for (size_t b = 0; b < inputs.size(); ++b) {
      const Result& result = placed_body(number, b, device, inputs[b]);
      add_tasks(result.program, tasks);
      for (Place input : inputs[b]) tasks.insert(task_of_device(*input));
      for (Place output : result.outputs) {
        if (output) tasks.insert(task_of_device(*output));
      }
    }
    return tasks.size() > 1;
  }

  // Returns where the outputs of the bodies end up, which are the first results of the instruction. `several`: they are
  // on several tasks, and all that they return must come to `device`.
  std::vector<Place> place_bodies(size_t number, Instruction& instruction, Place device,
                                  const std::vector<std::vector<Place>>& inputs, bool several) {
    const std::string& name = in_.op_of(instruction).name;
    std::vector<Place> outputs(in_.bodies[instruction.bodies[0]].outputs.size(), device);
    if (name == kCond.name) {
      // Where both branches leave it, if they agree.
      const std::vector<Place> then = placed_body(number, 0, device, inputs[0]).outputs;
      const std::vector<Place> otherwise = placed_body(number, 1, device, inputs[1]).outputs;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (then[i] == otherwise[i] && then[i] && !several) outputs[i] = then[i];
      }
      for (size_t b : {0, 1}) instruction.bodies[b] = add_body(number, b, device, inputs[b], outputs);
      return outputs;
    }
    // What a trip returns is what the next one is given, so it must be in the same place.
    const size_t before = name == kLoop.name ? 1 : 1 + std::get<ArgumentList>(instruction.arguments[1].value).size();
    for (size_t i = 0; i < instruction.results[0].size(); ++i) {
      outputs[i] = inputs[0][before + i];
      if (several && task_of_device(*outputs[i]) != task_of_device(*device)) {
        throw_not_shared(in_.bodies[instruction.bodies[0]], *outputs[i], *device);
      }
    }
    instruction.bodies[0] = add_body(number, 0, device, inputs[0], outputs);
    if (instruction.bodies.size() > 1) instruction.bodies[1] = add_body(number, 1, device, inputs[1], {device});
    return outputs;
  }

  // A body with several callers is placed once for each way of being called.
  const Result& placed_body(size_t caller, size_t position, Place device, const std::vector<Place>& inputs) {
    const int32_t body = in_.instructions[caller].bodies[position];
    std::vector<bool> written = written_around(caller, position);
    auto [known, is_new] = placed_bodies_.try_emplace({body, device, inputs, written});
    if (is_new) {
      // Bodies in bodies that are all moved to the driver are placed twice on each level.
      constexpr int kMostBodies = 100'000;
      if (++all_.bodies > kMostBodies) {
        throw resource_exhausted("program \"", in_.name, "\": its bodies can be placed in more than ", kMostBodies,
                                 " ways; ask for fewer devices in them");
      }
      known->second =
          ProgramPlacer(in_.bodies[body], device, aliases_.argument_classes(body), written, all_).run(&inputs);
    }
    return known->second;
  }

  // Returns the number of the body as it is called here, with its outputs brought to where they must be.
  int32_t add_body(size_t caller, size_t position, Place device, const std::vector<Place>& inputs,
                   const std::vector<Place>& outputs) {
    const int32_t body = in_.instructions[caller].bodies[position];
    const std::vector<bool> written = written_around(caller, position);
    auto [number, is_new] =
        bodies_.try_emplace({body, device, inputs, written, outputs}, static_cast<int32_t>(out_.bodies.size()));
    if (!is_new) return number->second;
    const Result& placed = placed_body(caller, position, device, inputs);
    Program program = placed.program;
    std::map<std::pair<ValueId, Place>, ValueId> copies;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!placed.outputs[i] || placed.outputs[i] == outputs[i]) continue;
      refuse_copy_of_shared(program, i, written, *placed.outputs[i], *outputs[i]);
      ValueId& copy = copies.try_emplace({program.outputs[i], outputs[i]}, kNoValue).first->second;
      if (copy == kNoValue) copy = append_copy(program, program.outputs[i], outputs[i]);
      program.outputs[i] = copy;
    }
    out_.bodies.push_back(std::move(program));
    return number->second;
  }

  // What a body hands on of what it was given, and somebody writes to, cannot come out elsewhere.
  void refuse_copy_of_shared(const Program& body, size_t output, const std::vector<bool>& written,
                             const std::string& from, const std::string& to) const {
    const ValueId value = body.outputs[output];
    if (static_cast<size_t>(value) >= written.size() || !written[value]) return;
    const Aliases aliases(body);
    for (const ProgramArgument& argument : body.arguments) {
      if (aliases.group(argument.value) == aliases.group(value)) throw_not_shared(body, from, to);
    }
  }
  [[noreturn]] static void throw_not_shared(const Program& body, const std::string& from, const std::string& to) {
    throw invalid_argument("program \"", body.name, "\" returns memory on ", from,
                           " that it was given and that is written to, but its result must be on ", to,
                           "; let it return a clone()");
  }

  // Makes `id` refer to the value as it is on `device`: to a copy, if it is not there.
  void bring(ValueId& id, Place device) {
    if (!where_[id]) {
      // A constant. One that is written is memory like any other, and lives where it is first touched.
      if (aliases_.written(aliases_.group(id))) where_[id] = device;
      return;
    }
    if (where_[id] == device) return;
    const int64_t version = versions_[aliases_.group(id)];
    auto [known, is_new] = copies_.try_emplace({id, device});
    if (is_new || known->second.version != version) known->second = {version, append_copy(out_, id, device)};
    id = known->second.value;
  }

  ValueId append_copy(Program& program, ValueId value, Place device) {
    ValueId result = program.new_value();
    program.instructions.push_back({.op = program.intern_op(kCopy.name, kCopy.schema),
                                    .device = program.intern_device(*device),
                                    .arguments = {{ValueRef{value}}},
                                    .results = {{result}}});
    if (all_.placed) all_.placed->push_back({program.name, kCopy.name, *device, "copied for its reader"});
    return result;
  }

  void append(Instruction instruction, Place device, const char* why) {
    instruction.device = out_.intern_device(*device);
    if (all_.placed) all_.placed->push_back({out_.name, out_.op_of(instruction).name, *device, why});
    out_.instructions.push_back(std::move(instruction));
  }

  struct Copy {
    int64_t version = 0;
    ValueId value = kNoValue;
  };

  const Program in_;
  const Place default_device_;
  const Aliases aliases_;
  Placement& all_;
  Program out_;
  std::vector<int64_t> versions_;    // by group: how often it was written
  std::vector<int64_t> last_write_;  // by group: the last instruction that writes; one around this program is later
  std::vector<Place> where_;         // by value of in_
  std::map<std::pair<ValueId, Place>, Copy> copies_;
  using Called = std::tuple<int32_t, Place, std::vector<Place>, std::vector<bool>>;
  std::map<Called, Result> placed_bodies_;
  std::map<std::tuple<int32_t, Place, std::vector<Place>, std::vector<bool>, std::vector<Place>>, int32_t> bodies_;
};

void add_rows(const Program& program, const std::string& indent,
              std::vector<std::pair<std::string, std::string>>& rows) {
  for (const VariableRef& variable : program.variables) {
    rows.emplace_back(str_cat(indent, "variable ", variable.name), program.devices[variable.device]);
  }
  std::vector<bool> shown(program.bodies.size());  // a body with two callers is shown once
  for (const Instruction& instruction : program.instructions) {
    rows.emplace_back(indent + program.op_of(instruction).name, program.devices[instruction.device]);
    for (int32_t body : instruction.bodies) {
      if (!shown[body]) add_rows(program.bodies[body], indent + "  ", rows);
      shown[body] = true;
    }
  }
}

}  // namespace

Program place(Program program, const PlacerOptions& options, std::vector<PlacedOp>* placed) {
  Placement all{.devices = DeviceSet(options.devices, options.default_device, options.soft_placement),
                .placed = placed,
                .options = options};
  const Place default_device = all.intern(all.devices.default_device());
  if (!options.driver.empty()) {
    all.driver = options.driver;
    all.driver_device = options.driver + "/device:CPU:0";
    if (task_of_device(*default_device) == options.driver) all.driver_device = *default_device;
  }
  Program result = ProgramPlacer(std::move(program), default_device, {}, {}, all).run(nullptr).program;
  for (const auto& [places, wishes] : all.overruled) {
    if (options.quiet) break;
    MUSTER_LOG(info) << "placer: " << wishes.second
                     << (wishes.first > 1 ? str_cat(" and ", wishes.first - 1, " more") : "") << " asked for "
                     << places.first << ", but the memory that it works on is on " << places.second;
  }
  for (const auto& [op, device] : all.without_kernel) {
    if (options.quiet) break;
    MUSTER_LOG(info) << "placer: program \"" << result.name << "\": libtorch has no kernel of " << op << " for "
                     << device << ", so it runs on the CPU of that task";
  }
  if (options.log_placement) {
    MUSTER_LOG(info) << "placement of program \"" << result.name << "\":\n" << placement_table(result);
  }
  return result;
}

std::string placement_table(const Program& program) {
  std::vector<std::pair<std::string, std::string>> rows{{"op", "device"}};
  add_rows(program, "", rows);
  size_t width = 0;
  for (const auto& [op, device] : rows) width = std::max(width, op.size());
  std::string text;
  for (const auto& [op, device] : rows) {
    str_append(text, op, std::string(width - op.size() + 2, ' '), device.empty() ? "(any)" : device, "\n");
  }
  return text;
}

}  // namespace muster
