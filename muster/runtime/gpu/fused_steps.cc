#include "muster/runtime/gpu/fused_steps.h"

#include <algorithm>

namespace muster {
namespace {

bool is_op(const Step& step, const Program& program, const char* name) {
  return step.as<Step::Op>() && program.op_of(program.instructions[step.instruction]).name == name;
}

bool is_alone(const Step& step) { return step.awaits.empty() && step.signals < 0; }

// Whether `activation` is all that becomes of what `product` makes.
bool belong_together(const Step& product, const Step& activation, const Program& program) {
  if (!is_op(product, program, "aten::addmm") || !is_op(activation, program, "aten::relu")) return false;
  if (product.signals >= 0 || !is_alone(activation) || activation.slots.size() != 1) return false;
  const ValueId between = product.results[0][0];
  return activation.slots[0].value == between &&
         std::find(activation.kills.begin(), activation.kills.end(), between) != activation.kills.end();
}

}  // namespace

void fuse_activations(std::vector<Step>& lane, const Program& program) {
  static const auto both = c10::Dispatcher::singleton().findSchema({"aten::_addmm_activation", ""});
  if (!both) return;
  for (size_t i = 0; i + 1 < lane.size(); ++i) {
    if (!belong_together(lane[i], lane[i + 1], program)) continue;
    Step& product = lane[i];
    Step& activation = lane[i + 1];
    std::erase(activation.kills, product.results[0][0]);
    Step::Op& call = *product.as<Step::Op>();
    call.op = *both;
    call.stack.emplace_back(false);  // relu, not gelu
    product.results = std::move(activation.results);
    product.kills.insert(product.kills.end(), activation.kills.begin(), activation.kills.end());
    call.second_factor = -1;
    lane.erase(lane.begin() + static_cast<ptrdiff_t>(i) + 1);
  }
}

}  // namespace muster
