#include "muster/runtime/tuning/weight_order.h"

#include <gtest/gtest.h>

#include <functional>

#include "muster/graph/checker.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;
using testing_support::refs;

// A layer without what is around it: the product with its weight, and the update by the gradient of that.
struct Layer {
  explicit Layer(Builder& b, ValueId w) : builder(b), weight(w), x(b.argument()), gradient_of_result(b.argument()) {
    result = b.op("aten::mm", {ref(x), ref(b.op("aten::t", {ref(w)}))});
    gradient = b.op("aten::mm", {ref(b.op("aten::t", {ref(gradient_of_result)})), ref(x)});
  }
  ValueId update() { return builder.op("aten::sub_.Tensor", {ref(weight), ref(gradient), integer(1)}); }

  Builder& builder;
  ValueId weight, x, gradient_of_result, result = kNoValue, gradient = kNoValue;
};

int products_of(const Program& program) {
  check(program);
  BodyAliases bodies;
  return products_in_any_order(program.variables.at(0).value, program, Aliases(program), bodies);
}

TEST(WeightOrder, CountsTheProductsOfATrainingStep) {
  Builder b;
  Layer layer(b, b.variable("w"));
  layer.update();
  const Program program = b.finish({layer.result});

  EXPECT_EQ(products_of(program), 2);
  EXPECT_EQ(targets_of_products(program)[layer.gradient], layer.weight);
  EXPECT_EQ(targets_of_products(program)[layer.result], kNoValue);
}

TEST(WeightOrder, KnowsUpdatesThatAreOneOp) {
  Builder b;
  Layer layer(b, b.variable("w"));
  const ValueId bias = b.variable("b");
  const ValueId sum =
      b.op("aten::addmm", {ref(bias), ref(layer.x), ref(b.op("aten::t", {ref(layer.weight)})), integer(1), integer(1)});
  b.instruction("aten::_foreach_sub_.List", {refs({layer.weight, bias}), refs({layer.gradient, sum}), integer(1)}, {});

  EXPECT_EQ(products_of(b.finish({})), 3);
}

TEST(WeightOrder, FollowsGradientsThatReplicasAddUp) {
  Builder b;
  Layer first(b, b.variable("w")), second(b, b.variable("w/copy_1"));
  const ValueId there = b.op(kCopy.name, {ref(first.gradient)}), here = b.op(kCopy.name, {ref(second.gradient)});
  auto subtract = [&](ValueId weight, ValueId one, ValueId other) {
    return b.op("aten::sub_.Tensor", {ref(weight), ref(b.add(one, other)), integer(1)});
  };
  const ValueId of_first = subtract(first.weight, first.gradient, here);
  const ValueId of_second = subtract(second.weight, there, second.gradient);
  Program program = b.finish({first.result, second.result});
  program.devices = {"", "/device:CPU:0", "/device:CPU:1"};
  for (Instruction& instruction : program.instructions) {
    const ValueId result = instruction.results[0][0];
    if (result == of_first || result == first.gradient) instruction.device = 1;
    if (result == of_second || result == second.gradient) instruction.device = 2;
  }

  EXPECT_EQ(products_of(program), 2);
  EXPECT_EQ(targets_of_products(program)[first.gradient], first.weight);
  EXPECT_EQ(targets_of_products(program)[second.gradient], second.weight);
}

TEST(WeightOrder, FollowsGradientsThatAreMultipliedByNumbers) {
  Builder b;
  Layer layer(b, b.variable("w"));
  const ValueId half = b.op("aten::mul.Tensor", {ref(layer.gradient), ref(b.constant(0.5))});
  const ValueId rated = b.op("aten::mul.Tensor", {ref(half), ref(b.argument({DType::kFloat, {}}))});
  const ValueId scaled = b.op("aten::mul.Scalar", {ref(rated), {0.1}});
  b.op("aten::sub_.Tensor", {ref(layer.weight), ref(scaled), integer(1)});
  const Program program = b.finish({});

  EXPECT_EQ(products_of(program), 2);
  for (ValueId value : {layer.gradient, half, rated, scaled}) {
    EXPECT_EQ(targets_of_products(program)[value], layer.weight);
  }
}

TEST(WeightOrder, LeavesAGradientInRowsThatIsMultipliedByAMatrixOrUsedTwice) {
  for (const bool twice : {false, true}) {
    Builder b;
    Layer layer(b, b.variable("w"));
    const ValueId factor = twice ? b.constant(0.5) : layer.x;
    const ValueId scaled = b.op("aten::mul.Tensor", {ref(layer.gradient), ref(factor)});
    b.op("aten::sub_.Tensor", {ref(layer.weight), ref(scaled), integer(1)});
    const Program program = b.finish(twice ? std::vector{layer.gradient} : std::vector<ValueId>());

    EXPECT_EQ(targets_of_products(program)[layer.gradient], kNoValue);
  }
}

TEST(WeightOrder, FollowsCopiesThatReplicasMultiplyBy) {
  auto products_with = [](const std::function<ValueId(Builder&, ValueId copy)>& other_use) {
    Builder b;
    Layer first(b, b.variable("w"));
    const ValueId copy = b.op(kCopy.name, {ref(b.op("aten::t", {ref(first.weight)}))});
    const ValueId result = b.op("aten::mm", {ref(b.argument()), ref(copy)});
    const ValueId there = b.op("aten::mm", {ref(b.op("aten::t", {ref(result)})), ref(b.argument())});
    const ValueId gradient = b.add(first.gradient, b.op(kCopy.name, {ref(there)}));
    const ValueId output = other_use(b, copy);
    b.op("aten::sub_.Tensor", {ref(first.weight), ref(gradient), integer(1)});
    return products_of(b.finish({output}));
  };

  EXPECT_EQ(products_with([](Builder& b, ValueId) { return b.argument(); }), 4);
  EXPECT_EQ(products_with([](Builder&, ValueId copy) { return copy; }), 0) << "the copy leaves the program";
  EXPECT_EQ(products_with([](Builder& b, ValueId copy) { return b.relu(copy); }), 0) << "something else reads it";
  EXPECT_EQ(products_with([](Builder& b, ValueId copy) { return b.add_(copy, copy); }), 0) << "the copy is written";
}

TEST(WeightOrder, LeavesASumInRowsThatIsNotOfProductsOnly) {
  Builder b;
  Layer layer(b, b.variable("w"));
  b.op("aten::sub_.Tensor", {ref(layer.weight), ref(b.add(layer.gradient, layer.x)), integer(1)});
  const Program program = b.finish({});

  EXPECT_EQ(products_of(program), 0);
  EXPECT_EQ(targets_of_products(program)[layer.gradient], kNoValue);
}

TEST(WeightOrder, FollowsAWeightIntoALoop) {
  Builder body("body");
  body.argument({DType::kLong, {}});
  const ValueId state = body.argument(), x = body.argument(), w = body.argument();
  const ValueId result = body.op("aten::mm", {ref(x), ref(body.op("aten::t", {ref(w)}))});
  const ValueId gradient = body.op("aten::mm", {ref(result), ref(x)});
  body.op("aten::sub_.Tensor", {ref(w), ref(gradient), integer(1)});
  Program inside = body.finish({body.relu(state)});
  auto program_with = [&](bool as_state) {
    Builder outer;
    const ValueId a = outer.argument(), weight = outer.variable("w");
    const int32_t number = outer.body(inside);
    outer.instruction(kLoop.name, {integer(3), refs({as_state ? weight : a}), refs({a, as_state ? a : weight})},
                      {1, 1, 1}, "", {number});
    return outer.finish({});
  };

  EXPECT_EQ(products_of(program_with(/*as_state=*/false)), 2);
  EXPECT_EQ(products_of(program_with(/*as_state=*/true)), 0);
}

TEST(WeightOrder, LeavesAWeightInRowsThatIsUsedInAnyOtherWay) {
  auto products_with = [](const std::function<ValueId(Builder&, Layer&)>& other_use) {
    Builder b;
    Layer layer(b, b.variable("w"));
    const ValueId output = other_use(b, layer);
    return products_of(b.finish({layer.result, output}));
  };

  EXPECT_EQ(products_with([](Builder& b, Layer& layer) {
              layer.update();
              return b.op("aten::mm", {ref(layer.gradient_of_result), ref(layer.weight)});
            }),
            0)
      << "not transposed";
  EXPECT_EQ(products_with([](Builder& b, Layer& layer) {
              layer.update();
              return b.relu(b.op("aten::t", {ref(layer.weight)}));
            }),
            0)
      << "the transpose is no factor";
  EXPECT_EQ(products_with([](Builder& b, Layer& layer) {
              return b.op("aten::mm", {ref(b.op("aten::t", {ref(layer.weight)})), ref(layer.x)});
            }),
            0)
      << "the transpose is the first factor";
  EXPECT_EQ(products_with([](Builder&, Layer& layer) {
              layer.update();
              return layer.weight;
            }),
            0)
      << "it leaves the program";
  EXPECT_EQ(products_with([](Builder&, Layer& layer) { return layer.update(); }), 0) << "it leaves as a result";
  EXPECT_EQ(products_with([](Builder&, Layer& layer) {
              layer.update();
              return layer.gradient;
            }),
            0)
      << "the gradient is wanted by somebody else";
  EXPECT_EQ(products_with([](Builder& b, Layer& layer) {
              b.add_(layer.weight, layer.x);
              return layer.x;
            }),
            0)
      << "the gradient is no product";
}

}  // namespace
}  // namespace muster
