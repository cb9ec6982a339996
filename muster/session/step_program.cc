#include "muster/session/step_program.h"

#include <algorithm>

#include "muster/graph/checker.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/passes/passes.h"
#include "muster/graph/passes/rotate_loops.h"
#include "muster/graph/placement/split.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/worker/worker.h"

namespace muster {
namespace {

bool uses_others(const Program& program, const std::string& driver) {
  auto is_other = [&](int32_t device) { return task_of_device(program.devices[device]) != driver; };
  return std::any_of(program.variables.begin(), program.variables.end(),
                     [&](const VariableRef& variable) { return is_other(variable.device); }) ||
         std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& instruction) { return is_other(instruction.device); }) ||
         std::any_of(program.bodies.begin(), program.bodies.end(),
                     [&](const Program& body) { return uses_others(body, driver); });
}

// The device as one of the task that stands for the variables of its task.
std::string apart(const std::string& device) {
  DeviceSpec spec = DeviceSpec::parse(device);
  spec.replica = kApart;
  return spec.to_string();
}

// Puts the driver's variables on a task of their own. `placed` says where they are.
Program with_variables_apart(Program program, const Program& placed, const std::string& driver) {
  for (size_t i = 0; i < program.variables.size(); ++i) {
    const std::string& device = placed.devices[placed.variables[i].device];
    if (task_of_device(device) == driver) program.variables[i].device = program.intern_device(apart(device));
  }
  return program;
}

PlacerOptions with_devices_apart(PlacerOptions options, const std::string& driver) {
  const size_t count = options.devices.size();
  for (size_t i = 0; i < count; ++i) {
    if (task_of_device(options.devices[i]) == driver) options.devices.push_back(apart(options.devices[i]));
  }
  options.log_placement = false;  // the first placement has been logged
  options.quiet = true;
  return options;
}

// After the split, that task is the driver's again.
void rejoin(Program& program, const std::string& driver_apart, const std::string& driver) {
  auto rename = [&](std::string& text) {
    if (const size_t at = text.find(driver_apart); at != std::string::npos) {
      text.replace(at, driver_apart.size(), driver);
    }
  };
  rename(program.name);
  rename(program.task);
  for (std::string& device : program.devices) {
    if (task_of_device(device) == driver_apart) rename(device);
  }
  for (Instruction& instruction : program.instructions) {
    if (program.op_of(instruction).name != kReceive.name) continue;
    auto& source = std::get<std::string>(instruction.arguments[1].value);
    if (source == driver_apart) source = driver;
  }
  for (Program& body : program.bodies) rejoin(body, driver_apart, driver);
  for (Program& part : program.parts) rejoin(part, driver_apart, driver);
}

}  // namespace

Program make_step(const Program& program, const std::string& container, const PlacerOptions& devices,
                  const std::string& driver) {
  check(program);
  verify_schemas(program);
  Program step = program;
  step.parts.clear();
  for (VariableRef& variable : step.variables) variable.name = name_in_container(container, variable.name);
  cancel_views(step);
  merge_repeated(step);
  eliminate_dead(step);
  PlacerOptions options = devices;
  options.driver = driver;
  Program placed = place(step, options);
  const bool has_variables = std::any_of(
      placed.variables.begin(), placed.variables.end(),
      [&](const VariableRef& variable) { return task_of_device(placed.devices[variable.device]) == driver; });
  if (has_variables && uses_others(placed, driver)) {
    placed = place(with_variables_apart(std::move(step), placed, driver), with_devices_apart(options, driver));
  }
  step = split(std::move(placed), driver);
  rotate_loops(step);
  if (has_variables) rejoin(step, task_of_device(apart(driver + "/device:CPU:0")), driver);
  return step;
}

}  // namespace muster
