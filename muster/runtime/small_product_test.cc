#include "muster/runtime/small_product.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/graph/test_program.h"
#include "muster/runtime/local_worker.h"

namespace muster::small_product_test {
namespace {

using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;

bool worth(int64_t rows, int64_t inner, int64_t columns) {
  return is_worth_a_copy(torch::ones({rows, inner}), torch::ones({columns, inner}).t());
}

#if defined(__aarch64__)
constexpr bool kHere = true;
#else
constexpr bool kHere = false;
#endif

TEST(SmallProduct, WithATransposedMatrixIsWorthACopyOfIt) {
  EXPECT_EQ(worth(64, 128, 10), kHere);
  EXPECT_EQ(worth(32, 64, 32), kHere);
}

TEST(SmallProduct, IsLeftAloneWhereNothingIsGained) {
  EXPECT_FALSE(worth(64, 10, 10)) << "libtorch multiplies it itself";
  EXPECT_FALSE(worth(1, 128, 128)) << "a vector";
  EXPECT_FALSE(worth(64, 784, 128)) << "the matrix is large";
  EXPECT_FALSE(worth(4096, 128, 10)) << "the product is large";
  EXPECT_FALSE(is_worth_a_copy(torch::ones({64, 128}), torch::ones({128, 10}))) << "not transposed";
  EXPECT_FALSE(is_worth_a_copy(torch::ones({64, 128}, torch::kDouble), torch::ones({10, 128}, torch::kDouble).t()));
}

TEST(SmallProduct, OfAProgramIsThatOfTheCopy) {
  torch::manual_seed(1);
  const torch::Tensor bias = torch::randn({10}), x = torch::randn({64, 128}), w = torch::randn({10, 128});
  Builder b("layer");
  const ValueId bias_in = b.argument({DType::kFloat, {10}}), x_in = b.argument({DType::kFloat, {64, 128}});
  const ValueId w_in = b.argument({DType::kFloat, {10, 128}});
  const ValueId transposed = b.op("aten::t", {ref(w_in)});
  LocalWorker worker{{.devices = {.gpus = false}}};
  const ProgramHandle layer = worker.register_program(
      b.finish({b.op("aten::addmm", {ref(bias_in), ref(x_in), ref(transposed), integer(1), integer(1)})}));

  const torch::Tensor result = worker.run(layer, {bias, x, w}).at(0);

  // Where libtorch takes one way for both, they are equal anyway.
  const torch::Tensor copied = torch::addmm(bias, x, kHere ? w.t().contiguous() : w.t());
  EXPECT_TRUE(torch::equal(result, copied));
}

}  // namespace
}  // namespace muster::small_product_test
