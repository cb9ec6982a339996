#include "muster/train/batch_norm.h"

#include <ostream>

#include "muster/train/count_batch.h"
#include "muster/train/expect_features.h"

namespace muster {

void BatchNormImpl::_check_input_dim(const at::Tensor& input) {
  expect_features("BatchNorm", input, options.num_features());
}

at::Tensor BatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool by_batch = is_training() || !options.track_running_stats();
  if (!by_batch || input.numel() > options.num_features()) return BatchNormImplBase::forward(input);
  // What a single value differs by from its mean. Gradients go the way they go at other replicas, and are 0.
  at::Tensor normal = input * 0;
  if (options.affine()) {
    std::vector<int64_t> broadcast(static_cast<size_t>(input.dim()), 1);
    broadcast[1] = options.num_features();
    normal = normal * weight.view(broadcast) + bias.view(broadcast);
  }
  if (is_training() && options.track_running_stats() && input.numel() > 0) {
    update_statistics(input.detach().reshape({options.num_features()}));
  }
  return normal.to(input.scalar_type());
}

void BatchNormImpl::update_statistics(const at::Tensor& values) {
  count_batch(*this, [&](const auto& share) {
    running_mean.lerp_(values.to(running_mean.scalar_type()), share);
    running_var.mul_(1 - share);
  });
}

void BatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "muster::BatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

}  // namespace muster
