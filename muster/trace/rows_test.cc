#include "muster/trace/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/variable_arithmetic.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Rows, AreChangedOneAfterTheOther) {
  Variable v(torch::ones({4, 2}));
  auto add = function([&](at::Tensor ids, at::Tensor rows) { scatter(v, Scatter::kAdd, ids, rows); });

  add(torch::tensor({1, 3, 1}), torch::full({3, 2}, 2.0F));

  EXPECT_TRUE(torch::equal(v.value(), torch::tensor({{1.0F, 1.0F}, {5.0F, 5.0F}, {1.0F, 1.0F}, {3.0F, 3.0F}})));
}

TEST(Rows, AreDividedAsTensorsAre) {
  const at::Tensor numbers = torch::arange(1, 101, torch::kFloat), by = torch::full({100}, 3.0F);
  Variable v(numbers), integers(torch::tensor({-7, 9}));
  auto divide = [](const Variable& w, const at::Tensor& ids, const at::Tensor& rows) {
    function([&w](at::Tensor i, at::Tensor r) { scatter(w, Scatter::kDiv, i, r); })(ids, rows);
  };

  divide(v, torch::arange(100), by);
  EXPECT_TRUE(torch::equal(v.value(), numbers / by));
  divide(v, torch::tensor({5, 5, 5}), torch::tensor({3.0F, 7.0F, 11.0F}));
  EXPECT_EQ(v.value()[5].item<float>(), 6.0F / 3.0F / 3.0F / 7.0F / 11.0F);
  divide(integers, torch::tensor({0, 1}), torch::tensor({2, 2}));
  EXPECT_TRUE(torch::equal(integers.value(), torch::tensor({-3, 4})));
}

TEST(Rows, OfRowsAreReplaced) {
  Variable v(torch::zeros({2, 3, 2}));
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });
  const at::Tensor rows = torch::arange(1, 9, torch::kFloat).reshape({2, 2, 2});

  update(torch::tensor({{2, 0}, {1, 2}}), rows);

  at::Tensor expected = torch::zeros({2, 3, 2});
  expected[0][2] = rows[0][0];
  expected[0][0] = rows[0][1];
  expected[1][1] = rows[1][0];
  expected[1][2] = rows[1][1];
  EXPECT_TRUE(torch::equal(v.value(), expected));
}

TEST(Rows, OfRowsWithOneDimensionAreRows) {
  Variable v(torch::zeros({3}));
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });

  update(torch::tensor({2, 0}), torch::tensor({5.0F, 6.0F}));

  EXPECT_TRUE(torch::equal(v.value(), torch::tensor({6.0F, 0.0F, 5.0F})));
}

TEST(Rows, MustFit) {
  Variable v(torch::zeros({2, 3}), {.name = "v"});
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });
  auto add = function([&](at::Tensor ids, at::Tensor rows) { scatter(v, Scatter::kAdd, ids, rows); });

  EXPECT_THAT(refusal_of([&] { update(torch::tensor({{0}, {1}, {2}}), torch::ones({3, 1})); }), HasSubstr("\"v\""));
  EXPECT_THAT(refusal_of([&] { update(torch::tensor({{0}, {1}}), torch::ones({2, 2})); }), HasSubstr("float32[2, 2]"));
  EXPECT_THAT(refusal_of([&] { add(torch::tensor({0}), torch::ones({1, 2})); }), HasSubstr("float32[1, 2]"));
}

// ---- Gradients
Variable in_parts(const at::Tensor& value, std::vector<int64_t> rows, const std::string& name = "whole") {
  std::vector<Variable> parts;
  for (const at::Tensor& part : value.split_with_sizes(rows)) parts.emplace_back(part.contiguous());
  return Variable(std::make_shared<Variable::State>(std::move(parts), VariableOptions{.name = name}));
}

TEST(Rows, ThatWereLookedUpAreInTheGradientByTheTable) {
  const at::Tensor start = torch::randn({5, 2}), ids = torch::tensor({{4, 1}, {-1, 4}}), rows = torch::randn({2, 2, 2});
  at::Tensor expected = torch::zeros({5, 2});
  expected[4] = rows[0][0] + rows[1][1];
  expected[1] = rows[0][1];
  for (const Variable& table : {Variable(start), in_parts(start, {2, 3})}) {
    auto by_rows = function([&](at::Tensor weights) { return gradient((lookup(table, ids) * weights).sum(), table); });
    auto tied = function([&](at::Tensor weights) {
      return gradient((lookup(table, ids) * weights).sum() + table.value().sum() * 3, table);
    });

    EXPECT_TRUE(torch::allclose(by_rows(rows), expected));
    EXPECT_TRUE(torch::allclose(tied(rows), expected + 3));
  }
}

TEST(Rows, OfAPartAreRowsOfTheWholeAndTheOtherWayRound) {
  const at::Tensor start = torch::randn({5, 2});
  const Variable table = in_parts(start, {2, 3}), second = table.shards()[1];
  auto of_whole = function([&] {
    return gradient(lookup(second, torch::tensor({2, 0, -1})).sum() + lookup(table, torch::tensor({0, 4})).sum(),
                    table);
  });
  auto of_part = function([&] { return gradient(lookup(table, torch::tensor({3, 1, 3, -1})).sum(), second); });

  EXPECT_TRUE(
      torch::equal(of_whole(), torch::tensor({{1.0F, 1.0F}, {0.0F, 0.0F}, {1.0F, 1.0F}, {0.0F, 0.0F}, {2.0F, 2.0F}})));
  EXPECT_TRUE(torch::equal(of_part(), torch::tensor({{0.0F, 0.0F}, {2.0F, 2.0F}, {0.0F, 0.0F}})));
}

TEST(Rows, HaveAGradientIfTheLossDependsOnThem) {
  Variable a(torch::ones({3, 2})), b(torch::ones({3, 2})), c(torch::ones({3, 2}));
  size_t dense = 0, by_rows = 0;
  auto step = function([&](at::Tensor ids) {
    const at::Tensor seen = lookup(b, ids), rows = lookup(a, ids);
    const Gradients gradients = gradients_by_rows(rows.sum(), {a, b, c});
    dense = by_rows = 0;
    for (const at::Tensor& gradient : gradients.dense) dense += gradient.defined();
    by_rows = gradients.rows.size();
    EXPECT_NE(gradients.rows_of(a), nullptr);
    EXPECT_EQ(gradients.rows_of(b), nullptr) << "looked up, but not for this loss";
    EXPECT_EQ(gradients.rows_of(c), nullptr);
    return seen + as_dense(*gradients.rows_of(a)).sum();
  });

  const at::Tensor result = step(torch::tensor({1}));

  EXPECT_EQ(dense, 0u);
  EXPECT_EQ(by_rows, 1u);
  EXPECT_EQ(result[0][0].item<float>(), 3);
}

TEST(Rows, OfAVariableThatTheLossDoesNotDependOnHaveZerosIfAskedFor) {
  Variable used(torch::ones({2})), unused(torch::ones({3, 2}));
  auto step = function([&] { return gradient(used.value().sum(), unused); });

  EXPECT_TRUE(torch::equal(step(), torch::zeros({3, 2})));
}

// ---- Slices
TEST(Rows, AreSlicedAsPythonDoesIt) {
  const at::Tensor start = torch::arange(20, torch::kFloat).reshape({10, 2});
  using Index = std::optional<int64_t>;
  const std::vector<Index> ends{std::nullopt, 0, 1, 3, 5, 9, 10, 99, -1, -4, -10, -99};
  for (const Variable& v : {Variable(start), in_parts(start, {3, 3, 4}), in_parts(start, {1, 0, 9})}) {
    for (const Index first : ends) {
      for (const Index end : ends) {
        for (const int64_t step :
             {int64_t{1}, int64_t{2}, int64_t{4}, INT64_MAX, int64_t{-1}, int64_t{-3}, INT64_MIN}) {
          auto at_least_0 = [](int64_t i) { return i < 0 ? i + 10 : i; };
          std::vector<int64_t> expected;
          if (step > 0) {
            const int64_t stop = end ? std::min<int64_t>(at_least_0(*end), 10) : 10;
            for (int64_t i = first ? std::max<int64_t>(at_least_0(*first), 0) : 0; i < stop;
                 i += std::min<int64_t>(step, 10))
              expected.push_back(i);
          } else {
            const int64_t stop = end ? std::max<int64_t>(at_least_0(*end), -1) : -1;
            for (int64_t i = first ? std::min<int64_t>(at_least_0(*first), 9) : 9; i > stop;
                 i += std::max<int64_t>(step, -10))
              expected.push_back(i);
          }
          ASSERT_TRUE(torch::equal(slice(v, {.first = first, .end = end, .step = step}),
                                   start.index_select(0, torch::tensor(expected, torch::kLong))))
              << first.value_or(-1000) << ":" << end.value_or(-1000) << ":" << step;
        }
      }
    }
    EXPECT_TRUE(torch::equal(row(v, 7), start[7]));
    EXPECT_TRUE(torch::equal(row(v, -10), start[0]));
  }
}

TEST(Rows, AreSlicedInFunctionsWithGradients) {
  const Variable v = in_parts(torch::arange(6, torch::kFloat), {2, 4});
  auto step = function([&](at::Tensor weights) {
    return gradient((slice(v, {.first = 4, .end = 0, .step = -2}) * weights).sum() + row(v, -1) * 5, v);
  });

  EXPECT_TRUE(torch::equal(step(torch::tensor({1.0F, 2.0F})), torch::tensor({0.0F, 0.0F, 2.0F, 0.0F, 1.0F, 5.0F})));
}

TEST(Rows, AreNotSlicedOutOfWhatThereIs) {
  const Variable v = in_parts(torch::zeros({4, 2}), {2, 2}, "sliced"), scalar(torch::zeros({}));
  auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return StatusCode::kOk;
  };

  EXPECT_THAT(refusal_of([&] { slice(v, {.step = 0}); }), HasSubstr("step cannot be zero"));
  EXPECT_THAT(refusal_of([&] { slice(scalar, {}); }), HasSubstr("scalar"));
  for (const int64_t index : {int64_t{4}, int64_t{-5}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(code_of([&] { row(v, index); }), StatusCode::kOutOfRange) << index;
  }
  EXPECT_EQ(code_of([&] { row(scalar, 0); }), StatusCode::kOutOfRange);
}

// ---- Parts
TEST(Rows, OfSeveralVariablesAreOneVariableIfTheyFit) {
  auto whole_of = [](std::vector<Variable> parts) {
    return refusal_of([&] { Variable::State(std::move(parts), {.name = "whole"}); });
  };
  const Variable floats(torch::ones({5, 10}), {.name = "a"}), ints(torch::ones({5, 10}, torch::kLong), {.name = "b"});
  const Variable wide(torch::ones({5, 20}), {.name = "c"}), deep(torch::ones({5, 10, 1})), scalar(torch::ones({}));

  EXPECT_THAT(whole_of({}), HasSubstr("should be a non-empty list of"));
  EXPECT_THAT(whole_of({floats, ints}),
              ::testing::AllOf(HasSubstr("must have the same dtype"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  EXPECT_THAT(whole_of({floats, wide}), ::testing::AllOf(HasSubstr("the same shapes except"), HasSubstr("\"c\"")));
  EXPECT_THAT(whole_of({floats, deep}), HasSubstr("the same shapes except"));
  EXPECT_THAT(whole_of({scalar, scalar}), HasSubstr("scalar"));
  const Variable table = in_parts(torch::ones({3, 2}), {1, 2}, "table");
  EXPECT_THAT(whole_of({table.shards()[0]}),
              ::testing::AllOf(HasSubstr("part of variable \"table\""), HasSubstr("\"whole\"")));
  EXPECT_EQ(floats.state()->part_of, std::nullopt) << "what was refused has changed nothing";
}

TEST(Rows, OfAPartKnowTheWhole) {
  const Variable whole = in_parts(torch::arange(8, torch::kFloat).reshape({4, 2}), {1, 2, 1}, "whole");

  std::vector<int64_t> first_rows;
  for (const Variable& part : whole.shards()) {
    EXPECT_EQ(part.state()->part_of->name, "whole");
    EXPECT_EQ(part.state()->part_of->sizes, (std::vector<int64_t>{4, 2}));
    first_rows.push_back(part.state()->part_of->first_row);
  }

  EXPECT_EQ(first_rows, (std::vector<int64_t>{0, 1, 3}));
  EXPECT_TRUE(torch::equal(whole + whole, 2 * whole.value()));
  EXPECT_TRUE((whole == whole).all().item<bool>());
  EXPECT_TRUE(torch::equal(at::Tensor(whole), torch::arange(8, torch::kFloat).reshape({4, 2})));
}

// The table as one variable, and in two parts.
std::vector<Variable> tables(const at::Tensor& values) {
  const std::vector<Variable> parts{Variable(values.narrow(0, 0, 2)),
                                    Variable(values.narrow(0, 2, values.size(0) - 2))};
  return {Variable(values), Variable(std::make_shared<Variable::State>(parts, VariableOptions{.name = "in_parts"}))};
}

TEST(Rows, LookedUpInABodyHaveTheGradientThatTheyHaveOutside) {
  const at::Tensor values = torch::arange(10).to(torch::kFloat).view({5, 2}), ids = torch::tensor({1, 3, 1, 4});
  for (const Variable& table : tables(values)) {
    Variable w(torch::full({2}, 3.0));
    auto slopes = [&](at::Tensor loss) { return gradient(loss, table, w); };
    auto chosen = function([&](at::Tensor ids, at::Tensor which) {
      auto rows = [&] { return (lookup(table, ids) * w).sum(); };
      auto none = [&] { return w.value().square().sum(); };
      return slopes(cond(which > 0, rows, none));
    });
    auto repeated = function([&](at::Tensor ids) {
      auto body = [&](at::Tensor, at::Tensor sum) { return sum * 2 + (lookup(table, ids) * w).sum(); };
      return slopes(repeat(3, body, torch::zeros({})));
    });
    auto looped = function([&](at::Tensor ids) {
      auto more = [](at::Tensor sum) { return sum < 100; };
      auto body = [&](at::Tensor sum) { return sum + (lookup(table, ids) * w).sum(); };
      return slopes(while_loop(more, body, torch::zeros({})));
    });
    const at::Tensor by_rows = torch::zeros({5, 2}).index_add(0, ids, torch::full({4, 2}, 3.0));
    const at::Tensor by_w = values.index_select(0, ids).sum(0);

    const auto yes = chosen(ids, torch::ones({})), no = chosen(ids, torch::zeros({}));
    const auto three = repeated(ids), once = looped(ids);

    EXPECT_TRUE(torch::equal(yes[0], by_rows)) << yes[0];
    EXPECT_TRUE(torch::equal(yes[1], by_w)) << yes[1];
    EXPECT_TRUE(torch::equal(no[0], torch::zeros({5, 2}))) << no[0];
    EXPECT_TRUE(torch::equal(no[1], torch::full({2}, 6.0F))) << no[1];
    EXPECT_TRUE(torch::equal(three[0], by_rows * 7)) << three[0];
    EXPECT_TRUE(torch::equal(three[1], by_w * 7)) << three[1];
    EXPECT_TRUE(torch::equal(once[0], by_rows)) << once[0];
  }
}

TEST(Rows, LookedUpInABodyAreReadAndTrainedThere) {
  Variable table(torch::zeros({4, 2}));
  auto read = function([&](at::Tensor ids) {
    return repeat(2, [&](at::Tensor, at::Tensor s) { return s + lookup(table, ids); }, torch::ones({2, 2}));
  });
  auto train = function([&](at::Tensor ids) {
    repeat(3, [&] {
      const Gradients found = gradients_by_rows(lookup(table, ids).sum(), {table});
      ASSERT_EQ(found.rows.size(), 1u) << "by rows, not as a whole";
      scatter(table, Scatter::kSub, found.rows[0].ids[0], found.rows[0].rows[0]);
    });
  });

  train(torch::tensor({1, 1}));

  EXPECT_TRUE(torch::equal(table.value(), torch::tensor({{0.0F, 0.0F}, {-6.0F, -6.0F}, {0.0F, 0.0F}, {0.0F, 0.0F}})));
  EXPECT_TRUE(torch::equal(read(torch::tensor({1, 0})), torch::tensor({{-11.0F, -11.0F}, {1.0F, 1.0F}})));
}

TEST(Rows, OfATableMadeOnDemandAreReadInABodyButHaveNoGradientOutside) {
  Variable table(InitialValue::constant({1 << 20, 64}, 2).on_demand());
  Variable w(torch::ones({}));
  auto read = function([&](at::Tensor ids) {
    auto rows = [&] { return lookup(table, ids).sum() * w; };
    return gradient(cond(ids.sum() > 0, rows, rows), w);
  });
  auto trained = function([&](at::Tensor ids) {
    auto rows = [&] { return lookup(table, ids).sum() * w; };
    return gradient(cond(ids.sum() > 0, rows, rows), table);
  });

  EXPECT_EQ(read(torch::tensor({7})).item<float>(), 128);
  try {
    trained(torch::tensor({7}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kUnimplemented) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("made on demand"));
  }
}

}  // namespace
}  // namespace muster
