#include "muster/trace/read_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/rows.h"

namespace muster {
namespace {

TEST(ReadCacheScope, KeepsWhatWasReadFirstUntilItEnds) {
  Variable v(torch::full({}, 1.0F)), other(torch::full({}, 7.0F));
  {
    ReadCacheScope cache;
    EXPECT_EQ(v.value().item<float>(), 1);
    v.assign(torch::full({}, 5.0F));
    other.assign(torch::full({}, 8.0F));

    EXPECT_EQ(v.value().item<float>(), 1);
    EXPECT_EQ(other.value().item<float>(), 8) << "it was not read before";
  }

  EXPECT_EQ(v.value().item<float>(), 5);
}

TEST(ReadCacheScope, KeepsItInsideOfAFunctionWithItsGradient) {
  Variable v(torch::full({}, 2.0F));
  auto step = function([&](at::Tensor x) {
    ReadCacheScope cache;
    at::Tensor loss = v.value() * x;
    v.assign_add(x);
    at::Tensor again = v.value();
    return std::make_tuple(again, gradient(loss + again, v));
  });

  for (float expected : {2.0F, 5.0F}) {
    auto [again, by_v] = step(torch::full({}, 3.0F));
    EXPECT_EQ(again.item<float>(), expected);
    EXPECT_EQ(by_v.item<float>(), 4);
  }

  EXPECT_EQ(v.value().item<float>(), 8);
}

TEST(ReadCacheScope, GivesABodyWhatWasReadBeforeIt) {
  Variable v(torch::full({}, 1.0F));
  auto step = function([&] {
    ReadCacheScope cache;
    at::Tensor first = v.value();
    return repeat(
        3,
        [&](at::Tensor, at::Tensor sum) {
          v.assign_add(torch::ones({}));
          return sum + v.value();
        },
        first);
  });

  EXPECT_EQ(step().item<float>(), 4);
  EXPECT_EQ(v.value().item<float>(), 4);
}

TEST(ReadCacheScope, OfTheCallerIsNoneOfTheFunctions) {
  Variable v(torch::full({}, 1.0F));
  auto read = function([&] { return v.value() + 0; });
  ReadCacheScope cache;
  v.value();
  v.assign(torch::full({}, 5.0F));

  EXPECT_EQ(read().item<float>(), 5);
  EXPECT_EQ(v.value().item<float>(), 1);
}

TEST(ReadCacheScope, DoesNotNest) {
  ReadCacheScope outer;

  try {
    ReadCacheScope inner;
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("do not nest"));
  }

  EXPECT_EQ(ReadCacheScope::current(), &outer);
}

}  // namespace
}  // namespace muster
