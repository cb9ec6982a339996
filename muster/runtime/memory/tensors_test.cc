#include "muster/runtime/memory/tensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::tensors_test {

TEST(CopyOf, HasTheSameElementsInMemoryOfItsOwn) {
  const at::Tensor matrix = torch::randn({3, 4});
  const at::Tensor complex = torch::randn({3, 4}, torch::kComplexFloat);
  const std::vector<at::Tensor> tensors{matrix,
                                        matrix.t(),
                                        matrix.narrow(1, 1, 2),
                                        matrix.select(0, 1).expand({5, 4}),
                                        torch::empty({0, 2}),
                                        torch::tensor(true),
                                        torch::ones({1 << 21}),
                                        complex.conj(),
                                        torch::imag(complex.conj())};

  for (const at::Tensor& tensor : tensors) {
    const at::Tensor copy = copy_of(tensor);

    EXPECT_TRUE(torch::equal(copy, tensor)) << tensor.sizes();
    EXPECT_EQ(copy.strides(), tensor.clone().strides()) << tensor.sizes();
    EXPECT_TRUE(tensor.numel() == 0 || copy.const_data_ptr() != tensor.const_data_ptr()) << tensor.sizes();
  }
}

}  // namespace muster::tensors_test
