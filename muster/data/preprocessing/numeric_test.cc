#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/preprocessing/test_columns.h"

namespace muster::numeric_test {

using ::testing::HasSubstr;

std::string numeric_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CategoryEncoding, WritesAOneForEachCategory) {
  const auto layer = category_encoding({.num_tokens = 3, .output_mode = OutputMode::kOneHot});

  EXPECT_EQ(content((*layer)(int_tensor({2, 0}))), "float32[2, 3] 0 0 1 1 0 0");
  EXPECT_EQ(content((*layer)(int_tensor({2, 0}).reshape({2, 1}))), "float32[2, 3] 0 0 1 1 0 0");
  EXPECT_EQ(content((*layer)(int_tensor({2}))), "float32[1, 3] 0 0 1");
  EXPECT_EQ(content((*layer)(int_number(1))), "float32[3] 0 1 0");
}

TEST(CategoryEncoding, WritesOneRowForTheLastDimension) {
  const auto many = category_encoding({.num_tokens = 3});
  const auto count = category_encoding({.num_tokens = 3, .output_mode = OutputMode::kCount});
  const Column categories = int_tensor({2, 2, 0, 1}).reshape({2, 2});

  EXPECT_EQ(content((*many)(categories)), "float32[2, 3] 0 0 1 1 1 0");
  EXPECT_EQ(content((*count)(categories)), "float32[2, 3] 0 0 2 1 1 0");
  EXPECT_EQ(content((*count)(int_tensor({1, 1}))), "float32[3] 0 2 0");
  EXPECT_EQ(content((*count)(int_number(1))), "float32[3] 0 1 0");
}

TEST(CategoryEncoding, NamesACategoryThatIsNone) {
  const auto layer = category_encoding({.num_tokens = 3});

  EXPECT_THAT(numeric_error([&] { (*layer)(int_tensor({0, 3})); }),
              HasSubstr("category_encoding: got 3, expected 0 to 2"));
  EXPECT_THAT(numeric_error([&] { (*layer)(int_tensor({-1})); }), HasSubstr("got -1, expected 0 to 2"));
}

TEST(CategoryEncoding, RefusesOptionsThatMakeNone) {
  EXPECT_THAT(numeric_error([] { category_encoding({.num_tokens = 0}); }), HasSubstr("num_tokens 0"));
  EXPECT_THAT(numeric_error([] { category_encoding({.num_tokens = 1, .output_mode = OutputMode::kInt}); }),
              HasSubstr("output_mode \"int\""));
}

TEST(Discretization, GivesTheBinThatBeginsAtTheBoundary) {
  const auto layer = discretization({.bin_boundaries = {0, 1, 2}});

  EXPECT_EQ(content((*layer)(float_tensor({-1.5f, 1, 3.4f, 0.5f, 0, 3, 1.3f, 0}).reshape({2, 4}))),
            "int64[2, 4] 0 2 3 1 1 3 2 1");
  EXPECT_EQ(content((*layer)(int_tensor({-1, 0, 7}))), "int64[3] 0 1 3");
}

TEST(Discretization, PutsNanIntoTheLastBin) {
  const auto layer = discretization({.bin_boundaries = {0, 1}});

  EXPECT_EQ(content((*layer)(float_tensor({std::nanf(""), -INFINITY, INFINITY}))), "int64[3] 2 0 2");
}

TEST(Discretization, WritesRows) {
  const auto layer = discretization({.bin_boundaries = {0, 1}, .output_mode = OutputMode::kOneHot});

  EXPECT_EQ(content((*layer)(float_tensor({-1, 5}))), "float32[2, 3] 1 0 0 0 0 1");
}

TEST(Discretization, RefusesBoundariesThatDoNotAscend) {
  EXPECT_THAT(numeric_error([] { discretization({.bin_boundaries = {0, 2, 1}}); }),
              HasSubstr("boundary 2 is 1 after 2"));
  EXPECT_THAT(numeric_error([] { discretization({.bin_boundaries = {std::nanf("")}}); }),
              HasSubstr("boundary 0 is nan"));
  EXPECT_THAT(numeric_error([] { discretization({}); }), HasSubstr("there are no bin_boundaries"));
}

TEST(DiscretizationAdapter, LearnsTheBoundariesOfKeras) {
  const auto adapter = discretization_adapter({.num_bins = 4});
  const at::Tensor numbers = float_tensor({-1.5f, 1, 3.4f, 0.5f, 0, 3, 1.3f, 0});
  adapter->see(numbers);

  const auto layer = adapter->finish();

  EXPECT_EQ(content(layer->state().values.at("bin_boundaries")), "float32[3] 0 0.5 1.3");
  EXPECT_EQ(content((*layer)(numbers)), "int64[8] 0 2 3 2 1 3 3 1");
}

TEST(DiscretizationAdapter, PartsManyValuesEvenly) {
  const auto adapter = discretization_adapter({.num_bins = 4});
  for (int batch = 0; batch < 10; ++batch) {
    std::vector<float> values;
    for (int i = 0; i < 1000; ++i) values.push_back(static_cast<float>(i * 10 + batch));
    adapter->see(float_tensor(values));
  }

  const at::Tensor boundaries = adapter->finish()->state().values.at("bin_boundaries").tensor();

  ASSERT_EQ(boundaries.numel(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(boundaries.const_data_ptr<float>()[i], 2500 * (i + 1), 100);
}

TEST(DiscretizationAdapter, HasNoBoundaryForASingleBin) {
  const auto adapter = discretization_adapter({.num_bins = 1});
  adapter->see(float_tensor({1, 2, 3}));

  const auto layer = preprocessing_from(adapter->finish()->state());

  EXPECT_EQ(content((*layer)(float_tensor({-5, 5}))), "int64[2] 0 0");
}

TEST(DiscretizationAdapter, RefusesWhatIsNotFiniteAndNothing) {
  const auto adapter = discretization_adapter({.num_bins = 2});

  EXPECT_THAT(numeric_error([&] { adapter->see(float_tensor({1, INFINITY})); }), HasSubstr("got inf to learn from"));
  EXPECT_THAT(numeric_error([&] { adapter->finish(); }), HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(numeric_error([] { discretization_adapter({.num_bins = 0}); }), HasSubstr("num_bins 0"));
  EXPECT_THAT(numeric_error([] { discretization_adapter({.num_bins = 2, .epsilon = 0}); }), HasSubstr("epsilon 0"));
}

TEST(Normalization, SubtractsTheMeanAndDividesByTheDeviation) {
  const auto layer = normalization({.mean = float_tensor({3, 0}), .variance = float_tensor({4, 0.25f})});

  EXPECT_EQ(content((*layer)(float_tensor({5, 1, 3, 0}).reshape({2, 2}))), "float32[2, 2] 1 2 0 0");
  EXPECT_EQ(content((*layer)(int_tensor({1, 3}))), "float32[2] -1 6");
}

TEST(Normalization, TakesOneMeanForAll) {
  const at::Tensor three = float_tensor({3}).reshape(at::IntArrayRef()),
                   four = float_tensor({4}).reshape(at::IntArrayRef());

  EXPECT_EQ(content((*normalization({.axis = {}, .mean = three, .variance = four}))(float_tensor({1, 3, 5}))),
            "float32[3] -1 0 1");
  EXPECT_EQ(content((*normalization({.mean = three, .variance = four}))(float_tensor({1, 5}))), "float32[2] -1 1");
}

TEST(Normalization, IsUndoneByItsInverse) {
  const auto layer =
      normalization({.mean = float_tensor({3, 0}), .variance = float_tensor({4, 0.25f}), .invert = true});

  EXPECT_EQ(content((*layer)(float_tensor({1, 2}))), "float32[2] 5 1");
}

TEST(Normalization, DividesByNoLessThanEpsilon) {
  const auto layer = normalization({.mean = float_tensor({1}), .variance = float_tensor({0})});

  EXPECT_NEAR((*layer)(float_tensor({2})).tensor().const_data_ptr<float>()[0], 1e7f, 1);
}

TEST(Normalization, RefusesAnotherShape) {
  const auto layer = normalization({.mean = float_tensor({1, 2}), .variance = float_tensor({1, 1})});

  EXPECT_THAT(numeric_error([&] { (*layer)(float_tensor({1, 2, 3})); }),
              HasSubstr("normalization: got float32[3], expected 2 along axis 0"));
  EXPECT_THAT(numeric_error([&] { (*layer)(int_number(1)); }), HasSubstr("got the shape [], expected the axes [-1]"));
}

TEST(Normalization, RefusesMeansThatAreNone) {
  EXPECT_THAT(numeric_error([] { normalization({}); }), HasSubstr("there is no mean"));
  EXPECT_THAT(numeric_error([] { normalization({.mean = float_tensor({1})}); }), HasSubstr("there is no variance"));
  EXPECT_THAT(numeric_error([] { normalization({.mean = float_tensor({1}), .variance = float_tensor({1, 2})}); }),
              HasSubstr("mean of the shape [1] and variance of [2]"));
  EXPECT_THAT(numeric_error([] { normalization({.mean = float_tensor({NAN}), .variance = float_tensor({1})}); }),
              HasSubstr("mean nan and variance 1 at 0"));
}

TEST(Normalization, DoesNotSeeLaterChangesOfTheOptions) {
  at::Tensor mean = float_tensor({1});
  const auto layer = normalization({.mean = mean, .variance = float_tensor({1})});

  mean.zero_();

  EXPECT_EQ(content((*layer)(float_tensor({1}))), "float32[1] 0");
}

TEST(NormalizationAdapter, LearnsOverBatches) {
  const auto adapter = normalization_adapter();
  adapter->see(float_tensor({0, 7, 4, 2, 9, 6}).reshape({2, 3}));
  adapter->see(float_tensor({0, 7, 4}).reshape({1, 3}));
  adapter->see(float_tensor({2, 9, 6}));

  const auto layer = adapter->finish();

  EXPECT_EQ(content(layer->state().values.at("mean")), "float32[3] 1 8 5");
  EXPECT_EQ(content(layer->state().values.at("variance")), "float32[3] 1 1 1");
  EXPECT_EQ(content((*layer)(float_tensor({0, 7, 4}).reshape({1, 3}))), "float32[1, 3] -1 -1 -1");
}

TEST(NormalizationAdapter, LearnsOneMeanWithoutAxes) {
  const auto adapter = normalization_adapter({.axis = {}});
  adapter->see(float_tensor({1, 2, 3, 4}));
  adapter->see(float_tensor({5}));

  const auto layer = adapter->finish();

  EXPECT_EQ(content(layer->state().values.at("mean")), "float32[] 3");
  EXPECT_EQ(content(layer->state().values.at("variance")), "float32[] 2");
}

TEST(NormalizationAdapter, RefusesAnotherShapeThanBefore) {
  const auto adapter = normalization_adapter();
  adapter->see(float_tensor({1, 2}));

  EXPECT_THAT(numeric_error([&] { adapter->see(float_tensor({1, 2, 3})); }),
              HasSubstr("expected [2] along the axes [-1]"));
}

TEST(NormalizationAdapter, SaysInWhichRowANumberIsMissing) {
  const auto adapter = normalization_adapter();
  adapter->see(float_tensor({1, 2, 3, 4}).reshape({2, 2}));

  EXPECT_THAT(numeric_error([&] { adapter->see(float_tensor({5, 6, 7, NAN}).reshape({2, 2})); }),
              HasSubstr("normalization: got nan to learn from, in row 3 of what was seen (the first is 0), expected "
                        "finite numbers"));
  EXPECT_EQ(content(adapter->finish()->state().values.at("mean")), "float32[2] 2 3") << "as if it had not come";
}

TEST(NormalizationAdapter, CountsTheRowsOfWhatWasReadAndNotTheirSteps) {
  const auto adapter = normalization_adapter();
  adapter->see(float_tensor({1, 2, 3, 4, 5, 6, 7, 8}).reshape({2, 2, 2}));

  EXPECT_THAT(numeric_error([&] { adapter->see(float_tensor({1, 2, 3, 4, 5, 6, NAN, 8}).reshape({2, 2, 2})); }),
              HasSubstr("got nan to learn from, in row 3 of what was seen"));
}

TEST(NormalizationAdapter, RefusesToFinishWithoutNumbers) {
  const auto adapter = normalization_adapter();
  adapter->see(float_tensor({}).reshape({0, 2}));

  EXPECT_THAT(numeric_error([&] { adapter->finish(); }), HasSubstr("FAILED_PRECONDITION"));
}

}  // namespace muster::numeric_test
