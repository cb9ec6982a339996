// Batch norm for batches that may be as small as one row.
#pragma once

#include <torch/nn/modules/batchnorm.h>

namespace muster {

// As torch::nn::BatchNorm1d, 2d and 3d, whichever fits the input; but where those throw because a feature has one value
// in training, the variance is 0, as TensorFlow has it, and a batch without rows changes no statistics. A replica whose
// share of the last batch is so small goes on.
class BatchNormImpl : public torch::nn::BatchNormImplBase<1, BatchNormImpl> {
 public:
  using BatchNormImplBase<1, BatchNormImpl>::BatchNormImplBase;

  // [rows, features, …]. Throws Error{kInvalidArgument} for anything else.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  // One value of each feature.
  void update_statistics(const at::Tensor& values);
};

TORCH_MODULE(BatchNorm);

}  // namespace muster
