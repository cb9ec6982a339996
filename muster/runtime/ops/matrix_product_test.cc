#include "muster/runtime/ops/matrix_product.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::matrix_product_test {
namespace {

using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;

using Stack = std::vector<c10::IValue>;

TEST(MatrixProduct, IsMadeHereWhereOurKernelsTakeIt) {
  Stack product = {torch::ones({8, 16}), torch::ones({16, 8})};
  Stack sum = {torch::ones({8}), torch::ones({8, 16}), torch::ones({8, 16}).t(), 1, 1};

  ASSERT_TRUE(multiply_here(1, product));
  ASSERT_TRUE(multiply_here(2, sum));

  EXPECT_TRUE(torch::equal(product.at(0).toTensor(), torch::full({8, 8}, 16.0F)));
  EXPECT_TRUE(torch::equal(sum.at(0).toTensor(), torch::full({8, 8}, 17.0F)));
}

TEST(MatrixProduct, IsLeftToLibtorchIfItIsAnythingElse) {
  const torch::Tensor a = torch::ones({8, 16}), b = torch::ones({16, 8}), row = torch::ones({8});
  Stack doubles = {a.to(torch::kDouble), b.to(torch::kDouble)}, sizes_differ = {a, a};
  Stack scaled = {row, a, b, 2, 1}, of_matrix = {torch::ones({8, 8}), a, b, 1, 1},
        of_integers = {row.to(torch::kInt), a, b, 1, 1};

  EXPECT_FALSE(multiply_here(1, doubles));
  EXPECT_FALSE(multiply_here(1, sizes_differ));
  EXPECT_FALSE(multiply_here(2, scaled));
  EXPECT_FALSE(multiply_here(2, of_matrix));
  EXPECT_FALSE(multiply_here(2, of_integers));
  EXPECT_EQ(scaled.size(), 5u) << "the arguments are still there";
}

TEST(MatrixProduct, IsAddedWithoutBeingMade) {
  torch::manual_seed(1);
  const torch::Tensor a = torch::randn({8, 25}).t(), b = torch::randn({8, 30}), before = torch::randn({25, 30});
  torch::Tensor target = before.clone();

  ASSERT_TRUE(adds_here(target, a, b));
  add_product(target, a, b, -0.5);

  EXPECT_TRUE(torch::allclose(target, before - 0.5 * a.mm(b), 1e-5, 1e-5));
}

TEST(MatrixProduct, IsMadeIfItIsSmallerThanItsFactorsOrOfAnotherShapeThanWhatItIsAddedTo) {
  EXPECT_FALSE(adds_here(torch::ones({8, 8}), torch::ones({8, 100}), torch::ones({100, 8})));
  EXPECT_FALSE(adds_here(torch::ones({1, 50}), torch::ones({40, 8}), torch::ones({8, 50})));
  EXPECT_FALSE(adds_here(torch::ones({50, 40}).t(), torch::ones({40, 8}), torch::ones({8, 50})));
  EXPECT_FALSE(adds_here(torch::ones({40, 50}, torch::kDouble), torch::ones({40, 8}), torch::ones({8, 50})));
}

// Subtracts products from two matrices and a vector from a third variable. `spoils`: changes a factor in between.
torch::Tensor updated(bool exact, bool spoils, const std::vector<torch::Tensor>& arguments, const char* which) {
  Builder b("updates");
  const ValueId x = b.argument({DType::kFloat, {8, 30}}), g = b.argument({DType::kFloat, {8, 25}});
  const ValueId row = b.argument({DType::kFloat, {30}});
  std::vector<ValueId> variables;
  for (const char* name : {"v", "w", "b"}) {
    variables.push_back(b.variable(name));
    b.program.variables.back().spec = {DType::kFloat,
                                       name[0] == 'b' ? std::vector<int64_t>{30} : std::vector<int64_t>{25, 30}};
  }
  const ValueId transposed = b.op("aten::t", {ref(g)});
  const ValueId first = b.op("aten::mm", {ref(transposed), ref(x)});
  if (spoils) b.op("aten::add_.Tensor", {ref(x), ref(x), integer(1)});
  const ValueId second = b.op("aten::mm", {ref(transposed), ref(x)});
  b.op("aten::sub_.Tensor", {ref(variables[0]), ref(first), {0.5}});
  b.op("aten::sub_.Tensor", {ref(variables[1]), ref(second), {0.5}});
  b.op("aten::sub_.Tensor", {ref(variables[2]), ref(row), {0.5}});
  LocalWorker worker{{.devices = {.gpus = false}, .exact = exact}};
  const ProgramHandle program = worker.register_program(b.finish({}));
  for (const char* name : {"v", "w"}) worker.store().find(name)->assign(torch::ones({25, 30}));
  worker.store().find("b")->assign(torch::ones({30}));
  for (int i = 0; i < 2; ++i) worker.run(program, {arguments[0].clone(), arguments[1], arguments[2]});
  return worker.store().find(which)->read();
}

TEST(MatrixProduct, IsSubtractedInAProgramFromWhatItsFactorsWereThen) {
  torch::manual_seed(1);
  const std::vector<torch::Tensor> arguments = {torch::randn({8, 30}), torch::randn({8, 25}), torch::randn({30})};

  for (bool spoils : {false, true}) {
    for (const char* which : {"v", "w", "b"}) {
      const torch::Tensor ours = updated(false, spoils, arguments, which);
      EXPECT_TRUE(torch::allclose(ours, updated(true, spoils, arguments, which), 1e-5, 1e-5)) << which << spoils;
    }
  }
}

torch::Tensor layer(const LocalWorkerOptions& options, const torch::Tensor& bias, const torch::Tensor& x,
                    const torch::Tensor& w) {
  Builder b("layer");
  const ValueId bias_in = b.argument({DType::kFloat, {10}}), x_in = b.argument({DType::kFloat, {64, 12}});
  const ValueId w_in = b.argument({DType::kFloat, {10, 12}});
  const ValueId transposed = b.op("aten::t", {ref(w_in)});
  LocalWorker worker{options};
  const ProgramHandle program = worker.register_program(
      b.finish({b.op("aten::addmm", {ref(bias_in), ref(x_in), ref(transposed), integer(1), integer(1)})}));
  return worker.run(program, {bias, x, w}).at(0);
}

TEST(MatrixProduct, OfAProgramHasTheBitsOfLibtorchIfThatIsAskedFor) {
  torch::manual_seed(1);
  const torch::Tensor bias = torch::randn({10}), x = torch::randn({64, 12}), w = torch::randn({10, 12});
  const torch::Tensor expected = torch::addmm(bias, x, w.t());

  EXPECT_TRUE(torch::equal(layer({.devices = {.gpus = false}, .exact = true}, bias, x, w), expected));
  EXPECT_TRUE(torch::allclose(layer({.devices = {.gpus = false}}, bias, x, w), expected, 1e-4, 1e-4));
}

}  // namespace
}  // namespace muster::matrix_product_test
