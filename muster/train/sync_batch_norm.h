// Batch norm over the batches of all replicas.
#pragma once

#include <torch/nn/modules/batchnorm.h>

namespace muster {

// As torch::nn::BatchNorm1d, 2d and 3d, whichever fits the input, but the mean and the variance are those of the
// examples of all replicas of strategy.run(), in training; with small batches per replica that is what one wants. The
// running statistics are the same in all replicas. Costs two all_reduce each way.
class SyncBatchNormImpl : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  using NormImplBase::NormImplBase;
  explicit SyncBatchNormImpl(int64_t features) : SyncBatchNormImpl(torch::nn::BatchNormOptions(features)) {}

  // [rows, features, …]. Throws Error{kInvalidArgument} for anything else.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  void update_statistics(const at::Tensor& mean, const at::Tensor& variance, const at::Tensor& count);

  const void* first_statistics_ = nullptr;  // those that the first replica has
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace muster
