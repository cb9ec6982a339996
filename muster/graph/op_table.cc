#include "muster/graph/op_table.h"

#include <absl/container/flat_hash_map.h>

namespace muster {
namespace {

template <class Facts>
using OpTable = absl::flat_hash_map<std::string_view, Facts>;

// By name without overload. set_ makes its self share the memory of the source, and the "unsafe" ops hide from autograd
// what they are views of.
const OpTable<OpFamily>& families() {
  static const auto& table = *new OpTable<OpFamily>{
      {"aten::alias", {.view = true}},
      {"aten::as_strided", {.view = true, .by_strides = true}},
      {"aten::detach", {.view = true, .any_order = true}},
      {"aten::diagonal", {.view = true}},
      {"aten::expand", {.view = true}},
      {"aten::imag", {.view = true}},
      {"aten::movedim", {.view = true}},
      {"aten::narrow", {.view = true}},
      {"aten::permute", {.view = true}},
      {"aten::real", {.view = true}},
      {"aten::select", {.view = true}},
      {"aten::slice", {.view = true}},
      {"aten::split", {.view = true}},
      {"aten::squeeze", {.view = true}},
      {"aten::split_with_sizes", {.view = true}},
      {"aten::t", {.view = true}},
      {"aten::transpose", {.view = true}},
      {"aten::unbind", {.view = true}},
      {"aten::unfold", {.view = true}},
      {"aten::unsqueeze", {.view = true}},
      {"aten::view", {.view = true}},
      {"aten::view_as_complex", {.view = true}},
      {"aten::view_as_real", {.view = true}},
      {"aten::_unsafe_view", {.hidden_alias = "self", .view = true}},
      {"aten::_reshape_alias", {.view = true}},
      {"muster_views::strided", {.view = true, .by_strides = true}},
      {"aten::as_strided_", {.by_strides = true, .reshapes = true}},
      {"aten::as_strided_copy", {.by_strides = true}},
      {"aten::as_strided_scatter", {.by_strides = true}},
      {"aten::resize_", {.reshapes = true}},
      {"aten::resize_as_", {.reshapes = true}},
      {"aten::set_", {.hidden_alias = "source", .reshapes = true}},
      {"aten::set_data", {.reshapes = true}},
      {"aten::squeeze_", {.reshapes = true}},
      {"aten::swapaxes_", {.reshapes = true}},
      {"aten::swapdims_", {.reshapes = true}},
      {"aten::t_", {.reshapes = true}},
      {"aten::transpose_", {.reshapes = true}},
      {"aten::unsqueeze_", {.reshapes = true}},
      {"aten::detach_", {.reshapes = true}},
      {"aten::resize_as_sparse_", {.reshapes = true}},
      {"aten::sparse_resize_", {.reshapes = true}},
      {"aten::_resize_output_", {.reshapes = true}},
      {"aten::relu", {.any_order = true}},
      {"aten::threshold_backward", {.any_order = true}},
      {"aten::add", {.any_order = true}},
      {"aten::sub", {.any_order = true}},
      {"aten::mul", {.any_order = true}},
      {"aten::div", {.any_order = true}},
      {"aten::neg", {.any_order = true}},
      {"aten::sigmoid", {.any_order = true}},
      {"aten::tanh", {.any_order = true}},
      {"aten::gelu", {.any_order = true}},
      {"aten::silu", {.any_order = true}},
      {"aten::leaky_relu", {.any_order = true}},
      {"aten::elu", {.any_order = true}},
      {"aten::hardtanh", {.any_order = true}},
      {"aten::hardswish", {.any_order = true}},
      {"aten::clamp", {.any_order = true}},
      {"aten::clamp_min", {.any_order = true}},
      {"aten::clamp_max", {.any_order = true}},
      {"aten::abs", {.any_order = true}},
      {"aten::exp", {.any_order = true}},
      {"aten::sqrt", {.any_order = true}},
      {"aten::pow", {.any_order = true}},
      {"aten::where", {.any_order = true}},
      {"aten::maximum", {.any_order = true}},
      {"aten::minimum", {.any_order = true}},
      {"aten::sigmoid_backward", {.any_order = true}},
      {"aten::square", {.any_order = true}},
      {"aten::rsub", {.any_order = true}},
      {"aten::_to_copy", {.any_order = true}},
      {"aten::tanh_backward", {.any_order = true}},
      {"aten::gelu_backward", {.any_order = true}},
      {"aten::silu_backward", {.any_order = true}},
      {"aten::elu_backward", {.any_order = true}},
      {"aten::leaky_relu_backward", {.any_order = true}},
      {"aten::hardtanh_backward", {.any_order = true}},
      {"aten::hardswish_backward", {.any_order = true}},
      {"aten::empty", {.unset = true}},
      {"aten::empty_like", {.unset = true}},
      {"aten::empty_strided", {.unset = true}},
      {"aten::empty_permuted", {.unset = true}},
      {"aten::empty_quantized", {.unset = true}},
      {"aten::new_empty", {.unset = true}},
      {"aten::new_empty_strided", {.unset = true}},
      {"aten::_efficientzerotensor", {.unset = true}},
      {"aten::_empty_affine_quantized", {.unset = true}},
      {"aten::_empty_per_channel_affine_quantized", {.unset = true}},
      {"aten::rand", {.random = true}},
      {"aten::rand_like", {.random = true}},
      {"aten::randn", {.random = true}},
      {"aten::randn_like", {.random = true}},
      {"aten::randint", {.random = true}},
      {"aten::randint_like", {.random = true}},
      {"aten::randperm", {.random = true}},
      {"aten::native_dropout", {.random = true}},
      {"aten::dropout", {.random = true}},
      {"aten::alpha_dropout", {.random = true}},
      {"aten::feature_dropout", {.random = true}},
      {"aten::feature_alpha_dropout", {.random = true}},
      {"aten::dropout_", {.random = true}},
      {"aten::alpha_dropout_", {.random = true}},
      {"aten::feature_dropout_", {.random = true}},
      {"aten::lstm", {.random = true}},
      {"aten::gru", {.random = true}},
      {"aten::rnn_tanh", {.random = true}},
      {"aten::rnn_relu", {.random = true}},
      {"aten::_cudnn_rnn", {.random = true}},
      {"aten::miopen_rnn", {.random = true}},
      {"aten::_lstm_mps", {.random = true}},
      {"aten::mkldnn_rnn_layer", {.random = true, .asks_for_gradients = true}},
      {"aten::_cudnn_init_dropout_state", {.random = true}},
      {"aten::normal_functional", {.random = true}},
      {"aten::_flash_attention_forward", {.random = true}},
      {"aten::_efficient_attention_forward", {.random = true}},
      {"aten::scaled_dot_product_attention", {.random = true}},
      {"aten::feature_alpha_dropout_", {.random = true}},
      {"aten::_native_multi_head_attention", {.random = true}},
      {"aten::_cudnn_attention_forward", {.random = true}},
      {"aten::native_batch_norm", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::cudnn_batch_norm", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::miopen_batch_norm", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::batch_norm", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::_batch_norm_impl_index", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::batch_norm_update_stats", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::batch_norm_gather_stats", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::batch_norm_gather_stats_with_counts", {.hidden_writes = {"running_mean", "running_var"}}},
      {"aten::unsafe_split", {.hidden_alias = "self"}},
      {"aten::unsafe_chunk", {.hidden_alias = "self"}},
      {"aten::unsafe_split_with_sizes", {.hidden_alias = "self"}},
  };
  return table;
}

const OpTable<OpForm>& forms() {
  static const ImageKernels convolution{{0}, "aten::_slow_conv2d_forward"};
  static const ImageKernels convolution_backward{{0, 1}, "aten::_slow_conv2d_backward.output_mask"};
  static const ImageKernels pooling{{0}};
  static const ImageKernels max_pooling_backward{{0, 1, 7}};
  static const ImageKernels average_pooling_backward{{0, 1}};
  static const ImageKernels normalization{.images = {0}, .follows_on_gpus = true};
  static const ImageKernels normalization_backward{.images = {0, 1}, .follows_on_gpus = true};
  static const ImageKernels copy{.images = {}, .follows_on_gpus = true};
  static const auto& table = *new OpTable<OpForm>{
      // Views. A value of a program keeps its shape, so a tensor whose shape changes in place (t_) is another value
      // from
      // then on. And the strides that _reshape_alias is given are those of one tensor, where an argument may arrive
      // with
      // others.
      {"aten::alias", {.identity = true}},
      {"aten::detach", {.identity = true}},
      {"aten::t", {.transposes = true}},
      {"aten::_reshape_alias", {.view_like = "aten::view"}},
      {"aten::t_", {.view_like = "aten::t"}},
      {"aten::transpose_", {.view_like = "aten::transpose.int"}},
      {"aten::squeeze_", {.view_like = "aten::squeeze"}},
      {"aten::squeeze_.dim", {.view_like = "aten::squeeze.dim"}},
      {"aten::squeeze_.dims", {.view_like = "aten::squeeze.dims"}},
      {"aten::unsqueeze_", {.view_like = "aten::unsqueeze"}},
      {"aten::as_strided_", {.view_like = "aten::as_strided"}},
      {"aten::detach_", {.view_like = "aten::detach"}},
      // Products and updates.
      {"aten::mm", {.product = MatrixProduct::kProduct}},
      {"aten::addmm", {.product = MatrixProduct::kSumWithProduct}},
      {"aten::add_.Tensor", {.together = "aten::_foreach_add_.List", .common_from = 2, .arguments = 3, .adds = true}},
      {"aten::sub_.Tensor",
       {.together = "aten::_foreach_sub_.List", .common_from = 2, .arguments = 3, .adds = true, .subtracts = true}},
      {"aten::mul_.Tensor", {.together = "aten::_foreach_mul_.List", .common_from = 2, .arguments = 2}},
      {"aten::mul_.Scalar", {.together = "aten::_foreach_mul_.Scalar", .common_from = 1, .arguments = 2}},
      {"muster_step::descend_",
       {.together = "muster_step::descend_all_", .common_from = 2, .arguments = 3, .adds = true, .subtracts = true}},
      {"muster_step::momentum_", {.together = "muster_step::momentum_all_", .common_from = 3, .arguments = 7}},
      {"aten::_foreach_add_.List", {.adds = true}},
      {"aten::_foreach_sub_.List", {.adds = true, .subtracts = true}},
      {"muster_step::descend_all_", {.adds = true, .subtracts = true}},
      {"aten::copy_", {.overwrites = true, .copies = true}},
      {"aten::zero_", {.overwrites = true}},
      {"aten::fill_.Scalar", {.overwrites = true}},
      {"muster_rows::on_demand_", {.overwrites = true}},
      // What works element by element, and has a form that overwrites its first operand and gives the same bits: not
      // mul.Scalar, of which mul_ rounds the number to half precision where the tensor is of that.
      {"aten::add.Tensor", {.in_place = "aten::add_.Tensor"}},
      {"aten::sub.Tensor", {.in_place = "aten::sub_.Tensor"}},
      {"aten::mul.Tensor", {.in_place = "aten::mul_.Tensor"}},
      {"aten::div.Tensor", {.in_place = "aten::div_.Tensor"}},
      {"aten::add.Scalar", {.in_place = "aten::add_.Scalar"}},
      {"aten::sub.Scalar", {.in_place = "aten::sub_.Scalar"}},
      {"aten::div.Scalar", {.in_place = "aten::div_.Scalar"}},
      {"aten::neg", {.in_place = "aten::neg_"}},
      {"aten::abs", {.in_place = "aten::abs_"}},
      {"aten::exp", {.in_place = "aten::exp_"}},
      {"aten::log", {.in_place = "aten::log_"}},
      {"aten::sqrt", {.in_place = "aten::sqrt_"}},
      {"aten::rsqrt", {.in_place = "aten::rsqrt_"}},
      {"aten::sigmoid", {.in_place = "aten::sigmoid_"}},
      {"aten::tanh", {.in_place = "aten::tanh_"}},
      {"aten::relu", {.in_place = "aten::relu_"}},
      {"aten::gelu", {.in_place = "aten::gelu_"}},
      {"aten::silu", {.in_place = "aten::silu_"}},
      {"aten::elu", {.in_place = "aten::elu_"}},
      {"aten::leaky_relu", {.in_place = "aten::leaky_relu_"}},
      {"aten::clamp", {.in_place = "aten::clamp_"}},
      {"aten::clamp_min", {.in_place = "aten::clamp_min_"}},
      {"aten::clamp_max", {.in_place = "aten::clamp_max_"}},
      {"aten::addcmul", {.in_place = "aten::addcmul_"}},
      {"aten::addcdiv", {.in_place = "aten::addcdiv_"}},
      {"aten::threshold_backward", {.in_place = "aten::threshold_backward.grad_input"}},
      {"aten::sigmoid_backward", {.in_place = "aten::sigmoid_backward.grad_input"}},
      {"aten::tanh_backward", {.in_place = "aten::tanh_backward.grad_input"}},
      {"aten::gelu_backward", {.in_place = "aten::gelu_backward.grad_input"}},
      {"aten::silu_backward", {.in_place = "aten::silu_backward.grad_input"}},
      // Ops with several implementations.
      {"aten::convolution", {.images = &convolution}},
      {"aten::convolution_backward", {.images = &convolution_backward}},
      {"aten::max_pool2d_with_indices", {.images = &pooling}},
      {"aten::max_pool2d_with_indices_backward", {.images = &max_pooling_backward}},
      {"aten::avg_pool2d", {.images = &pooling}},
      {"aten::avg_pool2d_backward", {.images = &average_pooling_backward}},
      {"aten::_to_copy", {.images = &copy}},
      {"aten::native_batch_norm", {.images = &normalization}},
      {"aten::native_batch_norm_backward", {.images = &normalization_backward}},
  };
  return table;
}

}  // namespace

const OpFamily& family_of(std::string_view op_name) {
  static const OpFamily unknown;
  const auto it = families().find(op_name.substr(0, op_name.find('.')));
  return it == families().end() ? unknown : it->second;
}

const OpForm& form_of(std::string_view op_name) {
  static const OpForm unknown;
  const auto it = forms().find(op_name);
  return it == forms().end() ? unknown : it->second;
}

OpFacts facts_of(std::string_view op_name) { return {family_of(op_name), form_of(op_name)}; }

}  // namespace muster
