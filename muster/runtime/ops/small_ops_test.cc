#include "muster/runtime/ops/small_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <limits>
#include <string>

namespace muster::small_ops_test {

using Stack = std::vector<c10::IValue>;

c10::OperatorHandle handle_of(const std::string& op) {
  const size_t dot = op.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), op.substr(dot + 1).c_str());
}

// The second operand as libtorch hands it on if it was a number of C++.
at::Tensor number(c10::Scalar value) {
  at::Tensor tensor = torch::scalar_tensor(value, value.isFloatingPoint() ? torch::kDouble : torch::kLong);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

std::string operation(const std::string& name, bool in_place, bool tensor) {
  return "aten::" + name + (in_place ? "_" : "") + (tensor ? ".Tensor" : ".Scalar");
}

TEST(SmallOps, GiveTheBitsOfLibtorch) {
  torch::manual_seed(1);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor odd = torch::tensor({0.0F, -0.0F, inf, -inf, nan, 1e-42F, 3.4e38F});
  const at::Tensor large = torch::tensor({INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{7}});
  const std::vector<std::pair<at::Tensor, c10::IValue>> cases = {
      {torch::randn({37}), torch::randn({37})},
      {torch::randn({3, 1, 5}, torch::kDouble), torch::randn({3, 1, 5}, torch::kDouble)},
      {torch::randn({}), torch::randn({})},
      {torch::randn({0, 4}), torch::randn({0, 4})},
      {odd, odd.flip(0).contiguous()},
      {large, torch::tensor({int64_t{2}, int64_t{-1}, INT64_MIN, int64_t{3}})},
      {torch::randn({9}), number(0.1)},
      {torch::randn({9}), number(3)},
      {large, number(3)},
      {torch::randn({9}), 0.1},
      {torch::randn({9}, torch::kDouble), 7},
  };
  for (const std::string name : {"add", "sub", "mul", "div"}) {
    for (const auto& [first, second] : cases) {
      for (const bool in_place : {false, true}) {
        if (name == "div" && first.scalar_type() == at::kLong) continue;
        const std::string op = operation(name, in_place, second.isTensor());
        SCOPED_TRACE(op);
        Stack ours{first.clone(), second}, theirs{first.clone(), second};
        if (name == "add" || name == "sub") {
          ours.emplace_back(1);
          theirs.emplace_back(1);
        }
        const at::Tensor before = ours[0].toTensor();
        handle_of(op).callBoxed(theirs);

        ASSERT_TRUE(small_op(op)(ours, /*overwrite=*/false));

        ASSERT_EQ(ours.size(), 1u);
        EXPECT_TRUE(same_bits(ours[0].toTensor(), theirs[0].toTensor()));
        EXPECT_EQ(ours[0].toTensor().is_same(before), in_place);
      }
    }
  }
}

TEST(SmallOps, AddUpToTheBitsOfLibtorch) {
  torch::manual_seed(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor odd = torch::tensor({3.4e38F, 3.4e38F, -0.0F, nan}).view({2, 2});
  for (const at::Tensor& x : {torch::randn({64, 10}), torch::randn({1000}), torch::randn({3, 7, 5}), odd}) {
    for (const bool keeps : {false, true}) {
      std::vector<c10::IValue> dimensions = {std::vector<int64_t>{0}, std::vector<int64_t>{-1}, c10::IValue()};
      if (x.dim() > 1) dimensions.emplace_back(std::vector<int64_t>{0, 1});
      for (const c10::IValue& of : dimensions) {
        for (const auto& [op, dtype] : {std::pair("aten::mean.dim", c10::IValue()),
                                        std::pair("aten::sum.dim_IntList", c10::IValue(int64_t{7}))}) {
          Stack ours{x, of, keeps, dtype}, theirs = ours;
          handle_of(op).callBoxed(theirs);

          ASSERT_TRUE(small_op(op)(ours, /*overwrite=*/false)) << op;

          ASSERT_EQ(ours.size(), 1u);
          EXPECT_TRUE(same_bits(ours[0].toTensor(), theirs[0].toTensor())) << op << x.sizes() << of;
        }
      }
    }
  }
}

TEST(SmallOps, LeaveSumsOfOtherTypesToLibtorch) {
  const std::vector<int64_t> first = {0};
  const c10::IValue none, doubles = int64_t{7}, halves = int64_t{5};
  for (const Stack& stack :
       {Stack{torch::ones({4}), first, false, none}, Stack{torch::ones({4}), first, false, halves},
        Stack{torch::ones({4}, torch::kLong), first, false, doubles}, Stack{torch::ones({4096}), first, false, doubles},
        Stack{torch::ones({4, 4}).t(), first, false, doubles}}) {
    Stack sum = stack;
    EXPECT_FALSE(small_op("aten::sum.dim_IntList")(sum, false));
  }
  for (const Stack& stack :
       {Stack{torch::ones({4}), first, false, doubles}, Stack{torch::ones({4}, torch::kDouble), first, false, none},
        Stack{torch::ones({0, 4}), first, false, none}}) {
    Stack mean = stack;
    EXPECT_FALSE(small_op("aten::mean.dim")(mean, false));
  }
}

TEST(SmallOps, PutTheResultWhereTheyMay) {
  const at::Tensor first = torch::ones({4}), second = torch::full({4}, 2.0F);
  Stack stack{first, second};

  ASSERT_TRUE(small_op("aten::mul.Tensor")(stack, /*overwrite=*/true));

  EXPECT_TRUE(stack[0].toTensor().is_same(first));
  EXPECT_TRUE(torch::equal(first, second));
}

TEST(SmallOps, LeaveToLibtorchWhatItRefuses) {
  const at::Tensor whole = torch::ones({4}, torch::kLong), memory = torch::randn({5});
  Stack fraction{whole, whole, 1.0}, overlapping{memory.slice(0, 1), memory.slice(0, 0, 4)};

  EXPECT_FALSE(small_op("aten::add.Tensor")(fraction, /*overwrite=*/false));
  EXPECT_FALSE(small_op("aten::mul_.Tensor")(overlapping, /*overwrite=*/false));
}

TEST(SmallOps, LeaveToLibtorchWhatIsNotOfOneTypeAndShapeAndOrder) {
  const at::Tensor x = torch::randn({4, 4});
  const std::vector<Stack> others = {
      {x, torch::randn({4})},
      {x, torch::randn({4, 4}).t()},
      {x.t(), x},
      {x, torch::randn({4, 4}, torch::kDouble)},
      {x, torch::ones({4, 4}, torch::kLong)},
      {torch::ones({4}, torch::kLong), number(0.5)},
      {torch::ones({4}, torch::kLong), 0.5},
      {torch::ones({4}, torch::kInt), torch::ones({4}, torch::kInt)},
      {x.to(torch::kBFloat16), x.to(torch::kBFloat16)},
      {torch::_neg_view(x), x},
      {x, at::Tensor()},
      {x.to_sparse(), x},
      {number(1.5), x},
      {torch::randn({4096}), torch::randn({4096})},
  };
  for (Stack stack : others) {
    const Stack before = stack;
    EXPECT_FALSE(small_op("aten::mul.Tensor")(stack, true));
    ASSERT_EQ(stack.size(), before.size());
  }
  Stack halves{x, x, 0.5};
  EXPECT_FALSE(small_op("aten::add.Tensor")(halves, false));
  Stack whole{torch::ones({4}, torch::kLong), torch::ones({4}, torch::kLong)};
  EXPECT_FALSE(small_op("aten::div.Tensor")(whole, false));
  EXPECT_EQ(small_op("aten::matmul"), nullptr);
}

}  // namespace muster::small_ops_test
