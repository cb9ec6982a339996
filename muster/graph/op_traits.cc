#include "muster/graph/op_traits.h"

#include <array>

#include "muster/graph/op_table.h"

namespace muster {

const ControlOp* own_op(std::string_view op_name) {
  static constexpr std::array kOwn = {&kCond, &kLoop,   &kLoopGradient, &kElement, &kNext,
                                      &kCopy, &kRemote, &kSend,         &kReceive, &kCollective};
  for (const ControlOp* op : kOwn) {
    if (op_name == op->name) return op;
  }
  return nullptr;
}

bool is_control(std::string_view op_name) {
  return op_name == kCond.name || op_name == kLoop.name || op_name == kLoopGradient.name;
}

bool is_communication(std::string_view op_name) {
  return op_name == kRemote.name || op_name == kSend.name || op_name == kReceive.name || op_name == kCollective.name;
}

bool is_random(const OpSchema& schema) {
  return schema.random() || schema.known.random ||
         // With a dropout of zero they are not, but that is an argument.
         schema.name.starts_with("aten::_scaled_dot_product");
}

bool leaves_memory_unset(std::string_view op_name) { return family_of(op_name).unset; }

bool is_view(std::string_view op_name) { return family_of(op_name).view; }

std::optional<std::string> view_like(std::string_view op_name) {
  const std::string_view view = form_of(op_name).view_like;
  return view.empty() ? std::nullopt : std::make_optional<std::string>(view);
}

bool changes_shape_in_place(std::string_view op_name) { return family_of(op_name).reshapes; }

bool is_pure(const OpSchema& schema) {
  return !schema.results.empty() && !schema.writes() && !is_random(schema) && !schema.known.unset &&
         !is_control(schema.name) && !is_communication(schema.name) && schema.name != kNext.name;
}

}  // namespace muster
