#include "muster/session/step_program.h"

#include "muster/graph/checker.h"
#include "muster/graph/passes.h"
#include "muster/graph/rotate_loops.h"
#include "muster/graph/split.h"
#include "muster/runtime/worker.h"

namespace muster {

Program make_step(const Program& program, const std::string& container, const PlacerOptions& devices,
                  const std::string& driver) {
  check(program);
  Program step = program;
  step.parts.clear();
  for (VariableRef& variable : step.variables) variable.name = name_in_container(container, variable.name);
  cancel_views(step);
  merge_repeated(step);
  eliminate_dead(step);
  step = split(place(std::move(step), devices), driver);
  rotate_loops(step);
  return step;
}

}  // namespace muster
