#include "muster/graph/op_traits.h"

#include <algorithm>
#include <array>

namespace muster {
namespace {

using Name = std::string_view;

// Without their overloads.
constexpr std::array kRandom = {
    Name("aten::rand"),
    Name("aten::rand_like"),
    Name("aten::randn"),
    Name("aten::randn_like"),
    Name("aten::randint"),
    Name("aten::randint_like"),
    Name("aten::randperm"),
    Name("aten::native_dropout"),
    Name("aten::dropout"),
    Name("aten::alpha_dropout"),
    Name("aten::feature_dropout"),
    Name("aten::feature_alpha_dropout"),
    Name("aten::dropout_"),
    Name("aten::alpha_dropout_"),
    Name("aten::feature_dropout_"),
    Name("aten::lstm"),
    Name("aten::gru"),
    Name("aten::rnn_tanh"),
    Name("aten::rnn_relu"),
    Name("aten::_cudnn_rnn"),
    Name("aten::miopen_rnn"),
    Name("aten::_lstm_mps"),
    Name("aten::mkldnn_rnn_layer"),
    Name("aten::_cudnn_init_dropout_state"),
    Name("aten::normal_functional"),
    Name("aten::_flash_attention_forward"),
    Name("aten::_efficient_attention_forward"),
    Name("aten::scaled_dot_product_attention"),
    Name("aten::feature_alpha_dropout_"),
    Name("aten::_native_multi_head_attention"),
    Name("aten::_cudnn_attention_forward"),
};

constexpr std::array kUnset = {
    Name("aten::empty"),
    Name("aten::empty_like"),
    Name("aten::empty_strided"),
    Name("aten::empty_permuted"),
    Name("aten::empty_quantized"),
    Name("aten::new_empty"),
    Name("aten::new_empty_strided"),
    Name("aten::_efficientzerotensor"),
    Name("aten::_empty_affine_quantized"),
    Name("aten::_empty_per_channel_affine_quantized"),
};

constexpr std::array kViews = {
    Name("aten::alias"),
    Name("aten::as_strided"),
    Name("aten::detach"),
    Name("aten::diagonal"),
    Name("aten::expand"),
    Name("aten::imag"),
    Name("aten::movedim"),
    Name("aten::narrow"),
    Name("aten::permute"),
    Name("aten::real"),
    Name("aten::select"),
    Name("aten::slice"),
    Name("aten::split"),
    Name("aten::squeeze"),
    Name("aten::split_with_sizes"),
    Name("aten::t"),
    Name("aten::transpose"),
    Name("aten::unbind"),
    Name("aten::unfold"),
    Name("aten::unsqueeze"),
    Name("aten::view"),
    Name("aten::view_as_complex"),
    Name("aten::view_as_real"),
    Name("aten::_unsafe_view"),
    Name("aten::_reshape_alias"),
    Name("muster_views::strided"),
};

constexpr std::array kShapeChangers = {
    Name("aten::as_strided_"),
    Name("aten::resize_"),
    Name("aten::resize_as_"),
    Name("aten::set_"),
    Name("aten::set_data"),
    Name("aten::squeeze_"),
    Name("aten::swapaxes_"),
    Name("aten::swapdims_"),
    Name("aten::t_"),
    Name("aten::transpose_"),
    Name("aten::unsqueeze_"),
    Name("aten::detach_"),
    Name("aten::resize_as_sparse_"),
    Name("aten::sparse_resize_"),
    Name("aten::_resize_output_"),
};

template <class List>
bool contains(const List& names, std::string_view op_name) {
  return std::find(names.begin(), names.end(), op_name.substr(0, op_name.find('.'))) != names.end();
}

}  // namespace

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
  return schema.random() || contains(kRandom, schema.name) ||
         // With a dropout of zero they are not, but that is an argument.
         schema.name.starts_with("aten::_scaled_dot_product");
}

bool leaves_memory_unset(std::string_view op_name) { return contains(kUnset, op_name); }

bool is_view(std::string_view op_name) { return contains(kViews, op_name); }

std::optional<std::string> view_like(std::string_view op_name) {
  using Pair = std::pair<Name, Name>;
  static constexpr std::array kAlike = {
      Pair("aten::_reshape_alias", "aten::view"),      Pair("aten::t_", "aten::t"),
      Pair("aten::transpose_", "aten::transpose.int"), Pair("aten::squeeze_", "aten::squeeze"),
      Pair("aten::squeeze_.dim", "aten::squeeze.dim"), Pair("aten::squeeze_.dims", "aten::squeeze.dims"),
      Pair("aten::unsqueeze_", "aten::unsqueeze"),     Pair("aten::as_strided_", "aten::as_strided"),
      Pair("aten::detach_", "aten::detach"),
  };
  for (const auto& [op, view] : kAlike) {
    if (op == op_name) return std::string(view);
  }
  return std::nullopt;
}

bool changes_shape_in_place(std::string_view op_name) { return contains(kShapeChangers, op_name); }

bool is_pure(const OpSchema& schema) {
  return !schema.results.empty() && !schema.writes() && !is_random(schema) && !leaves_memory_unset(schema.name) &&
         !is_control(schema.name) && !is_communication(schema.name) && schema.name != kNext.name;
}

}  // namespace muster
