#include "muster/runtime/ops/float_product.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace muster::float_product_test {
namespace {

FloatMatrix matrix(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.size(0), tensor.size(1), tensor.stride(0), tensor.stride(1)};
}

// With the rows, or the columns, one after the other in memory, and a gap between them.
torch::Tensor random_matrix(int64_t rows, int64_t columns, bool transposed) {
  constexpr int64_t kGap = 3;
  if (transposed) return random_matrix(columns, rows, false).t();
  return torch::randn({rows, columns + kGap}).narrow(1, 0, columns);
}

struct Sizes {
  int64_t rows, inner, columns;
};

class FloatProduct : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }
};

// If this CPU does not leave it to libtorch.
void expect_product(const torch::Tensor& a, const torch::Tensor& b, float alpha, bool add) {
  if (!multiplies_floats(matrix(a), matrix(b))) return;
  torch::Tensor wide = torch::randn({a.size(0), b.size(1) + 2});
  torch::Tensor result = wide.narrow(1, 0, b.size(1)), beside = wide.narrow(1, b.size(1), 2);
  const torch::Tensor before = result.to(torch::kDouble), untouched = beside.clone();

  multiply_floats(matrix(a), matrix(b), result.mutable_data_ptr<float>(), wide.stride(0), alpha, add);

  torch::Tensor expected = torch::mm(a.to(torch::kDouble), b.to(torch::kDouble)) * alpha;
  if (add) expected += before;
  EXPECT_TRUE(torch::allclose(result.to(torch::kDouble), expected, 1e-4, 1e-3))
      << a.sizes() << a.strides() << " times " << b.sizes() << b.strides();
  EXPECT_TRUE(torch::equal(beside, untouched)) << "wrote beside its result";
}

TEST_F(FloatProduct, IsRightForAllOrdersAndSizesThatFillNoTile) {
  for (const Sizes& sizes : {Sizes{4, 4, 4}, Sizes{8, 16, 12}, Sizes{6, 64, 4}, Sizes{7, 50, 9}, Sizes{65, 131, 13},
                             Sizes{13, 131, 65}, Sizes{64, 784, 10}, Sizes{300, 300, 25}, Sizes{30, 2100, 30}}) {
    for (bool first_transposed : {false, true}) {
      for (bool second_transposed : {false, true}) {
        expect_product(random_matrix(sizes.rows, sizes.inner, first_transposed),
                       random_matrix(sizes.inner, sizes.columns, second_transposed), 1, false);
      }
    }
  }
}

TEST_F(FloatProduct, IsScaledAndAddedToWhatThereIs) {
  for (const Sizes& sizes : {Sizes{30, 600, 26}, Sizes{13, 30, 18}}) {
    for (bool second_transposed : {false, true}) {
      const torch::Tensor a = random_matrix(sizes.rows, sizes.inner, false);
      const torch::Tensor b = random_matrix(sizes.inner, sizes.columns, second_transposed);

      expect_product(a, b, -0.5F, true);
      expect_product(a, b, -0.5F, false);
    }
  }
}

TEST_F(FloatProduct, HasTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (bool second_transposed : {false, true}) {
    const torch::Tensor a = random_matrix(90, 700, false), b = random_matrix(700, 130, second_transposed);
    if (!multiplies_floats(matrix(a), matrix(b))) GTEST_SKIP() << "this CPU leaves large products to libtorch";
    torch::Tensor alone = torch::empty({90, 130}), together = torch::empty({90, 130});

    at::set_num_threads(1);
    multiply_floats(matrix(a), matrix(b), alone.mutable_data_ptr<float>(), 130, 1, false);
    at::set_num_threads(3);
    multiply_floats(matrix(a), matrix(b), together.mutable_data_ptr<float>(), 130, 1, false);
    at::set_num_threads(threads);

    EXPECT_TRUE(torch::equal(alone, together));
  }
}

TEST_F(FloatProduct, PassesNumbersOnThatAreNone) {
  torch::Tensor a = torch::ones({9, 60}), b = torch::ones({60, 13});
  a[8][3] = std::numeric_limits<float>::quiet_NaN();
  b[2][12] = std::numeric_limits<float>::infinity();
  torch::Tensor result = torch::empty({9, 13});

  multiply_floats(matrix(a), matrix(b), result.mutable_data_ptr<float>(), 13, 1, false);

  EXPECT_TRUE(torch::equal(result.isnan().sum(1), torch::tensor({0, 0, 0, 0, 0, 0, 0, 0, 13})));
  EXPECT_EQ(result.isinf().sum().item<int64_t>(), 8);
}

TEST(FloatProducts, OfSmallMatricesAreTakenOnEveryCpu) {
  EXPECT_TRUE(multiplies_floats(matrix(torch::ones({4, 4})), matrix(torch::ones({4, 4}))));
  EXPECT_TRUE(multiplies_floats(matrix(torch::ones({64, 10})), matrix(torch::ones({10, 10}).t())));
}

TEST(FloatProducts, OfVectorsAndOfMatricesInNoOrderAreLeftAlone) {
  const torch::Tensor square = torch::ones({16, 16});

  EXPECT_FALSE(multiplies_floats(matrix(torch::ones({1, 16})), matrix(square)));
  EXPECT_FALSE(multiplies_floats(matrix(square), matrix(torch::ones({16, 1}))));
  EXPECT_FALSE(multiplies_floats(matrix(square), matrix(torch::ones({32, 32}).as_strided({16, 16}, {64, 2}))));
}

}  // namespace
}  // namespace muster::float_product_test
