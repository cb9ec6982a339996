#include "muster/runtime/memory/readable.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace muster::readable_test {
namespace {

using ::testing::HasSubstr;

TEST(Readable, AreTensorsWhoseElementsLieInMemory) {
  const at::Tensor plain = torch::ones({2, 3});

  EXPECT_EQ(why_unreadable(plain), "");
  EXPECT_EQ(why_unreadable(plain.t()), "");
  EXPECT_EQ(why_unreadable(torch::ones({0, 3})), "");
  EXPECT_THAT(why_unreadable(at::Tensor()), HasSubstr("is undefined"));
  EXPECT_THAT(why_unreadable(plain.to_sparse()), HasSubstr("is sparse"));
  EXPECT_THAT(why_unreadable(torch::ones({2, 3}, torch::kMeta)), HasSubstr("meta device"));
  EXPECT_THAT(why_unreadable(torch::quantize_per_tensor(plain, 0.1, 0, torch::kQInt8)), HasSubstr("is quantized"));
}

}  // namespace
}  // namespace muster::readable_test
