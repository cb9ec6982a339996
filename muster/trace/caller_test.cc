#include "muster/trace/caller.h"

#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"

// Outside of our own name space, as a user's functions are.
namespace user {

__attribute__((noinline)) at::Tensor halve_while_large(at::Tensor x) {
  while (x.max().item<float>() > 1) x = x / 2;
  return x;
}

__attribute__((noinline)) at::Tensor multiply(at::Tensor a, at::Tensor b) { return torch::matmul(a, b); }

}  // namespace user

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Caller, OfAReadIsNamedAsTheUserKnowsIt) {
  auto halve = function(user::halve_while_large, {.name = "halve"});

  EXPECT_THAT(error_of([&] { halve(torch::full({2}, 8.0)); }),
              AllOf(HasSubstr("halve (caller_test.cc:"), HasSubstr("item()"), HasSubstr("in user::halve_while_large"),
                    Not(HasSubstr("+0x"))));
}

TEST(Caller, OfAnOpThatFailsIsNamedAsTheUserKnowsIt) {
  auto product = function(user::multiply, {.name = "product"});

  EXPECT_THAT(error_of([&] { product(torch::ones({2, 3}), torch::ones({2, 3})); }),
              AllOf(HasSubstr("function \"product\" (caller_test.cc:"), HasSubstr("in user::multiply"),
                    HasSubstr("argument 0: float32[2, 3], argument 1: float32[2, 3]"),
                    HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), Not(HasSubstr("frame #"))));
}

}  // namespace
}  // namespace muster
