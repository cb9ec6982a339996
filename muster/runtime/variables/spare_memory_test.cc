#include "muster/runtime/variables/spare_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::spare_memory_test {
namespace {

const TensorSpec kSpec{DType::kFloat, {1024, 1024}};

class Spare : public ::testing::Test {
 protected:
  Spare() { spare_.let_go(); }
  ~Spare() override { spare_.let_go(); }

  SpareMemory& spare_ = SpareMemory::instance();
};

TEST_F(Spare, GivesWhatHasComeBackToTheNextOfItsSize) {
  at::Tensor first = spare_.empty(kSpec);
  const void* const memory = first.const_data_ptr();
  EXPECT_EQ(spare_.kept(), 0);

  first.reset();

  EXPECT_EQ(spare_.kept(), kSpec.bytes());
  EXPECT_NE(spare_.empty({DType::kFloat, {1024, 1025}}).const_data_ptr(), memory) << "it is of another size";
  const at::Tensor second = spare_.empty(kSpec);
  EXPECT_EQ(second.const_data_ptr(), memory);
  EXPECT_EQ(second.sizes(), at::IntArrayRef(kSpec.sizes));
  EXPECT_TRUE(torch::equal(second.fill_(3), torch::full({1024, 1024}, 3.0F)));
}

TEST_F(Spare, KeepsNoMoreThanItsMost) {
  const TensorSpec large{DType::kByte, {SpareMemory::kMost / 2}};
  {
    const at::Tensor a = spare_.empty(large), b = spare_.empty(large), c = spare_.empty(large);  // never touched
  }

  EXPECT_EQ(spare_.kept(), SpareMemory::kMost);
  spare_.let_go();
  EXPECT_EQ(spare_.kept(), 0);
}

}  // namespace
}  // namespace muster::spare_memory_test
