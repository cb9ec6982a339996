#include "muster/graph/op_table.h"

#include <gtest/gtest.h>

#include "muster/graph/op_schema.h"
#include "muster/graph/test_program.h"

namespace muster::op_table_test {

TEST(OpTable, KnowsAFamilyByAnyOfItsOverloads) {
  EXPECT_TRUE(family_of("aten::squeeze").view);
  EXPECT_TRUE(family_of("aten::squeeze.dim").view);
  EXPECT_TRUE(family_of("aten::as_strided_").by_strides);
  EXPECT_TRUE(family_of("aten::mul.Scalar").any_order);
  EXPECT_FALSE(family_of("aten::squeeze_x").view);
}

TEST(OpTable, KnowsAFormByItsOverloadAlone) {
  EXPECT_EQ(form_of("aten::threshold_backward").in_place, "aten::threshold_backward.grad_input");
  EXPECT_EQ(form_of("aten::threshold_backward.grad_input").in_place, "");
  EXPECT_EQ(form_of("aten::squeeze_.dim").view_like, "aten::squeeze.dim");
  EXPECT_EQ(form_of("aten::squeeze_.dimname").view_like, "");
  EXPECT_EQ(form_of("aten::mm").product, MatrixProduct::kProduct);
  EXPECT_EQ(form_of("aten::mm.out").product, MatrixProduct::kNone);
  for (const char* op : {"aten::sub_.Tensor", "aten::_foreach_sub_.List", "muster_step::descend_"}) {
    EXPECT_TRUE(form_of(op).adds && form_of(op).subtracts) << op;
  }
  for (const char* op : {"aten::add_.Tensor", "aten::_foreach_add_.List"}) {
    EXPECT_TRUE(form_of(op).adds && !form_of(op).subtracts) << op;
  }
}

TEST(OpTable, KnowsNothingOfOthers) {
  const OpFacts facts = facts_of("mylib::mm");

  EXPECT_FALSE(facts.view || facts.random || facts.any_order || facts.adds);
  EXPECT_EQ(facts.images, nullptr);
  EXPECT_TRUE(facts.hidden_writes.empty() && facts.hidden_alias.empty());
}

TEST(OpTable, IsLookedUpWithTheSchema) {
  const OpSchema normalization = parse_schema(*testing_support::schema_of("aten::native_batch_norm"));

  ASSERT_NE(normalization.known.images, nullptr);
  EXPECT_TRUE(normalization.known.images->follows_on_gpus);
  EXPECT_EQ(normalization.known.hidden_writes.size(), 2u);
}

TEST(OpTable, SaysNothingOfAnArgumentWithoutAName) {
  const OpSchema schema = parse_schema("mylib::f(Tensor) -> Tensor");

  EXPECT_EQ(schema.arguments.at(0).aliases, "");
}

}  // namespace muster::op_table_test
