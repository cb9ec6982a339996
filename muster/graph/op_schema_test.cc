#include "muster/graph/op_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/program.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

OpSchema schema(const std::string& name) { return parse_schema(testing_support::schema_of(name).value()); }

TEST(OpSchema, ReadsNamesTypesAndResults) {
  OpSchema add = schema("aten::add.Tensor");

  EXPECT_EQ(add.name, "aten::add.Tensor");
  ASSERT_EQ(add.arguments.size(), 3u) << "the star before keyword arguments is no argument";
  EXPECT_EQ(add.arguments[0].name, "self");
  EXPECT_EQ(add.arguments[0].type, "Tensor");
  EXPECT_EQ(add.arguments[2].name, "alpha");
  EXPECT_EQ(add.arguments[2].type, "Scalar");
  ASSERT_EQ(add.results.size(), 1u);
  EXPECT_TRUE(add.results[0].is_tensor());
  EXPECT_FALSE(add.writes());
}

TEST(OpSchema, SeesWhatAnInPlaceOpAndAnOutOpWrite) {
  OpSchema in_place = schema("aten::add_.Tensor"), out = schema("aten::add.out");

  EXPECT_TRUE(in_place.arguments[0].written);
  EXPECT_FALSE(in_place.arguments[1].written);
  EXPECT_EQ(in_place.results[0].aliases, "a");
  EXPECT_EQ(out.arguments[3].name, "out");
  EXPECT_TRUE(out.arguments[3].written);
  EXPECT_TRUE(out.writes());
}

TEST(OpSchema, SeesViewsAlsoInLists) {
  OpSchema split = schema("aten::split.Tensor");

  EXPECT_EQ(split.arguments[0].type, "Tensor");
  EXPECT_THAT(split.arguments[0].aliases, HasSubstr("a"));
  EXPECT_FALSE(split.arguments[0].written);
  EXPECT_EQ(split.results[0].type, "Tensor[]");
  EXPECT_EQ(split.results[0].aliases, "a");
  EXPECT_TRUE(split.results[0].is_list());
}

TEST(OpSchema, ReadsListsOfTensorsThatAreWritten) {
  OpSchema foreach = schema("aten::_foreach_add_.List");

  EXPECT_EQ(foreach.arguments[0].type, "Tensor[]");
  EXPECT_TRUE(foreach.arguments[0].written);
  EXPECT_TRUE(foreach.results.empty());
}

TEST(OpSchema, ReadsOptionalElementsAndSizedLists) {
  EXPECT_EQ(schema("aten::index.Tensor").arguments[1].type, "Tensor?[]");
  OpSchema pool = parse_schema(
      "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=[0, 0], int[2] "
      "dilation=[1, 1], bool ceil_mode=False) -> (Tensor, Tensor)");
  ASSERT_EQ(pool.arguments.size(), 6u) << "the commas of defaults do not count";
  EXPECT_EQ(pool.arguments[3].type, "int[2]");
  EXPECT_EQ(pool.arguments[3].name, "padding");
  EXPECT_EQ(pool.results.size(), 2u);
}

TEST(OpSchema, ReadsDefaultsWithQuotesAndBrackets) {
  OpSchema div = parse_schema("aten::x(Tensor self, str mode=\"a, (b\", *, Tensor(a!)? out=None) -> Tensor(a!)?");

  ASSERT_EQ(div.arguments.size(), 3u);
  EXPECT_EQ(div.arguments[1].name, "mode");
  EXPECT_EQ(div.arguments[2].type, "Tensor?");
  EXPECT_TRUE(div.arguments[2].written);
}

TEST(OpSchema, KnowsWhatLibtorchKeepsQuietAbout) {
  OpSchema norm = schema("aten::native_batch_norm");
  EXPECT_EQ(norm.results.size(), 3u);
  EXPECT_FALSE(norm.arguments[1].written);
  EXPECT_TRUE(norm.arguments[3].written);
  EXPECT_TRUE(norm.arguments[4].written);

  EXPECT_EQ(schema("aten::_unsafe_view").results[0].aliases, "a");

  OpSchema set = parse_schema("aten::set_.source_Tensor(Tensor(a!) self, Tensor source) -> Tensor(a!)");
  EXPECT_EQ(set.arguments[1].aliases, "a");
  EXPECT_FALSE(set.arguments[1].written);
}

TEST(OpSchema, ReadsTheControlOps) {
  EXPECT_EQ(parse_schema(kLoop.schema).results.size(), 3u);
  EXPECT_EQ(parse_schema(kLoopGradient.schema).arguments.size(), 4u);
  EXPECT_EQ(parse_schema(kCond.schema).name, kCond.name);
}

TEST(OpSchema, RefusesWhatIsNoSchema) {
  for (const char* text : {"", "aten::relu", "aten::relu(Tensor self)", ") -> (", "x(Tensor(a self) -> Tensor"}) {
    EXPECT_THROW(parse_schema(text), Error) << text;
  }
}

TEST(OpTraits, TellsPureOpsFromOthers) {
  EXPECT_TRUE(is_pure(schema("aten::mm")));
  EXPECT_TRUE(is_pure(schema("aten::t")));
  EXPECT_FALSE(is_pure(schema("aten::add_.Tensor")));
  EXPECT_FALSE(is_pure(schema("aten::rand_like"))) << "random, though it has no generator";
  EXPECT_FALSE(is_pure(schema("aten::bernoulli_.float")));
  EXPECT_FALSE(is_pure(schema("aten::empty.memory_format")));
  EXPECT_FALSE(is_pure(schema("aten::_assert_async")));
  EXPECT_FALSE(is_pure(schema("muster::loop")));
}

}  // namespace
TEST(OpSchema, IsParsedOnceForAllWhoAsk) {
  const std::string text = "mylib::f(Tensor(a!) x, int n) -> Tensor(a!)";
  const auto first = shared_schema(text);

  EXPECT_EQ(first, shared_schema(text));
  EXPECT_TRUE(first->arguments.at(0).written);
  EXPECT_THROW(shared_schema("no schema"), Error);
}

}  // namespace muster
