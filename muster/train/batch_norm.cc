#include "muster/train/batch_norm.h"

#include <c10/core/GradMode.h>

#include <ostream>

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
  c10::AutoGradMode no_gradients(false);
  num_batches_tracked.add_(1);
  const at::Tensor mean = values.to(running_mean.scalar_type());
  if (options.momentum()) {
    running_mean.lerp_(mean, *options.momentum());
    running_var.mul_(1 - *options.momentum());
  } else {  // the mean of all batches so far
    const at::Tensor share = num_batches_tracked.to(running_mean.scalar_type()).reciprocal();
    running_mean.lerp_(mean, share);
    running_var.mul_(1 - share);
  }
}

void BatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "muster::BatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

}  // namespace muster
