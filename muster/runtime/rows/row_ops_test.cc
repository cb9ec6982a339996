#include "muster/runtime/rows/row_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/status.h"
#include "muster/runtime/executor/core_share.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

const at::Tensor kRate = torch::scalar_tensor(0.1, torch::kDouble);

TEST(RowOps, PutsTogetherWhatUniqueTookApart) {
  const at::Tensor table = torch::randn({10, 3});
  const at::Tensor ids = torch::tensor({7, 2, 7, -1, 9, 0, 2}, torch::kLong);

  auto [places, parts] = rows::unique(ids, {0, 4, 10});
  const at::Tensor back = rows::expand(places, {rows::gather(table.slice(0, 0, 4).contiguous(), parts[0]),
                                                rows::gather(table.slice(0, 4, 10).contiguous(), parts[1])});

  EXPECT_EQ(parts[0].numel() + parts[1].numel(), 4);  // 7, 2, 9 and 0
  at::Tensor expected = table.index_select(0, ids.clamp_min(0));
  expected[3].zero_();
  EXPECT_TRUE(torch::equal(back, expected));
}

TEST(RowOps, SumsTheGradientsOfARowThatIsThereTwice) {
  const at::Tensor ids = torch::tensor({1, 5, 1, -1}, torch::kLong);
  const at::Tensor gradient = torch::arange(8, torch::kFloat).reshape({4, 2});

  auto [places, parts] = rows::unique(ids, {0, 3, 6});
  auto sums = rows::sum(gradient, places, parts);

  EXPECT_TRUE(torch::equal(sums[0], torch::tensor({{4.0F, 6.0F}})));
  EXPECT_TRUE(torch::equal(sums[1], torch::tensor({{2.0F, 3.0F}})));
}

TEST(RowOps, AreTheSameForRowsOfAnyWidthAndAnyNumberOfParts) {
  for (int64_t width : {1, 3, 4, 8, 16, 20, 32, 64, 65}) {
    for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0, 50}, {0, 20, 50}, {0, 10, 10, 30, 50}}) {
      const at::Tensor table = torch::randn({50, width}), ids = torch::randint(-1, 50, {200}, torch::kLong);
      const at::Tensor wide = torch::randn({200, 3 * width}), gradient = wide.narrow(1, width, width);

      auto [places, part_ids] = rows::unique(ids, starts);
      std::vector<at::Tensor> found;
      for (size_t part = 0; part + 1 < starts.size(); ++part) {
        found.push_back(rows::gather(table.slice(0, starts[part], starts[part + 1]).contiguous(), part_ids[part]));
      }
      const at::Tensor back = rows::expand(places, found);
      const std::vector<at::Tensor> sums = rows::sum(gradient, places, part_ids);

      const at::Tensor none = ids.lt(0).unsqueeze(1), some = ids.clamp_min(0);
      EXPECT_TRUE(torch::equal(back, table.index_select(0, some).masked_fill(none, 0))) << width;
      at::Tensor expected = torch::zeros({50, width}), summed = torch::zeros({50, width});
      for (int64_t i = 0; i < 200; ++i) {  // in the order of the ids
        if (ids[i].item<int64_t>() >= 0) expected[ids[i].item<int64_t>()] += gradient[i];
      }
      for (size_t part = 0; part + 1 < starts.size(); ++part) {
        summed.slice(0, starts[part], starts[part + 1]).index_copy_(0, part_ids[part], sums[part]);
      }
      EXPECT_TRUE(torch::equal(summed, expected)) << width;
    }
  }
}

TEST(RowOps, SumToZeroForARowThatNobodyHasAndForOneOfMinusZero) {
  const at::Tensor places = torch::tensor({0}, torch::kInt), ids = torch::tensor({4, 5}, torch::kLong);

  const at::Tensor sums = rows::sum(torch::full({1, 3}, -0.0F), places, {ids})[0];

  EXPECT_TRUE(torch::equal(sums, torch::zeros({2, 3})));
  EXPECT_FALSE(sums.signbit().any().item<bool>());
}

TEST(RowOps, UpdateRowsOfAnyWidthByTheRuleOfAdagrad) {
  for (int64_t width : {1, 8, 16, 17, 32, 40}) {
    at::Tensor table = torch::randn({9, width}), sums = torch::rand({9, width}) + 0.1F;
    const at::Tensor before = table.clone(), sums_before = sums.clone();
    const at::Tensor ids = torch::tensor({8, 0, 5}, torch::kLong), gradient = torch::randn({3, width});

    rows::adagrad_(table, sums, ids, gradient, kRate, 1e-7);

    const at::Tensor squares = sums_before.index_select(0, ids) + gradient * gradient;
    EXPECT_TRUE(torch::allclose(sums, sums_before.index_copy(0, ids, squares)));
    const at::Tensor moved = before.index_select(0, ids) - gradient * 0.1 / (squares.sqrt() + 1e-7);
    EXPECT_TRUE(torch::allclose(table, before.index_copy(0, ids, moved))) << width;
  }
}

// What row ops make of many rows, some of which are named again and again, with so many threads.
std::vector<at::Tensor> made_by(int threads, int64_t width) {
  constexpr int64_t kRows = 3'000, kIds = 60'000;
  std::vector<at::Tensor> made;
  std::thread([&] {
    use_cores(threads);
    torch::manual_seed(3);
    const at::Tensor gradient = torch::randn({kIds, width}), ids = torch::randint(kRows, {kIds}, torch::kLong);
    std::vector<at::Tensor> tables;
    for (int i = 0; i < 5; ++i) tables.push_back(torch::rand({kRows, width}) + 0.5F);
    auto [places, parts] = rows::unique(ids, {0, kRows / 3, kRows + 50});
    made = rows::sum(gradient, places, parts);
    made.push_back(rows::gather(tables[0], ids));
    made.push_back(rows::expand(places, made));
    rows::add_(tables[0], ids, gradient, 0.3);
    rows::adagrad_(tables[1], tables[2], ids, gradient, kRate, 1e-7);
    rows::adam_(tables[3], tables[4], tables[2], torch::ones({1}), ids, gradient, kRate, 0.9, 0.99, 1e-7, 0.01);
    made.insert(made.end(), tables.begin(), tables.end());
  }).join();
  return made;
}

TEST(RowOps, HaveTheSameBitsWithAnyNumberOfThreads) {
  for (int64_t width : {3, 20}) {  // several rows in a cache line, and several lines of a row
    const std::vector<at::Tensor> alone = made_by(1, width);
    for (int threads : {2, 3, 5}) {
      const std::vector<at::Tensor> together = made_by(threads, width);
      ASSERT_EQ(together.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::equal(together[i], alone[i])) << width << ", " << threads << ": " << i;
      }
    }
  }
}

TEST(RowOps, RefusesAPlaceThatNobodyHasWhoeverComesByIt) {
  const at::Tensor places = torch::zeros({60'000}, torch::kInt), ids = torch::tensor({4, 5}, torch::kLong);
  places[50'000] = 2;

  EXPECT_THROW(rows::sum(torch::ones({60'000, 8}), places, {ids}), Error);
  EXPECT_THROW(rows::expand(places, {torch::ones({2, 8})}), Error);
}

TEST(RowOps, RefusesIdsThatAreTooLargeByName) {
  try {
    rows::unique(torch::tensor({6}, torch::kLong), {0, 3, 6});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kOutOfRange);
    EXPECT_THAT(error.what(), testing::HasSubstr("id 6 of a table with 6 rows"));
  }
  EXPECT_THROW(rows::gather(torch::zeros({2, 2}), torch::tensor({2}, torch::kLong)), Error);
  EXPECT_THROW(rows::unique(torch::tensor({1}, torch::kInt), {0, 3}), Error);
}

TEST(RowOps, RoutesEveryIdInItsOrder) {
  auto [parts, positions] = rows::route(torch::tensor({5, 0, 5, 1}, torch::kLong), {0, 2, 6});

  EXPECT_TRUE(torch::equal(parts[0], torch::tensor({0, 1}, torch::kLong)));
  EXPECT_TRUE(torch::equal(parts[1], torch::tensor({3, 3}, torch::kLong)));
  EXPECT_TRUE(torch::equal(positions[1], torch::tensor({0, 2}, torch::kLong)));
}

// ---- Operands that a forged program may have
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "";
}

at::Tensor ids_of(std::vector<int64_t> ids) { return torch::tensor(ids, torch::kLong); }

at::Tensor on_demand(std::vector<int64_t> sizes) {
  at::Tensor table = RowTable::zeros({DType::kFloat, std::move(sizes)});
  rows::on_demand_(table, RowRule::kNormal, 0, 1, 7, 0);
  return table;
}

TEST(RowOps, TakesIdsWithGapsAndOverlaps) {
  const at::Tensor table = torch::arange(12, torch::kFloat).reshape({6, 2});
  const at::Tensor same = ids_of({3}).expand({4}), every_other = ids_of({5, 0, 4, 0}).slice(0, 0, 4, 2);

  EXPECT_TRUE(torch::equal(rows::gather(table, same), table.index_select(0, ids_of({3, 3, 3, 3}))));
  EXPECT_TRUE(torch::equal(rows::gather(table, every_other), table.index_select(0, ids_of({5, 4}))));
  auto [places, parts] = rows::unique(same, {0, 6});
  EXPECT_TRUE(torch::equal(parts[0], ids_of({3})));
  at::Tensor changed = table.clone();
  rows::add_(changed, every_other, torch::ones({2, 2}), 1);
  rows::scatter_(changed, every_other, torch::ones({2, 2}), "sub");
  EXPECT_TRUE(torch::equal(changed, table));
  const at::Tensor two_places = torch::zeros({1}, torch::kInt).expand({2});
  EXPECT_TRUE(
      torch::equal(rows::expand(two_places, {table.narrow(0, 1, 1)}), torch::tensor({{2.0F, 3.0F}, {2.0F, 3.0F}})));
  EXPECT_TRUE(torch::equal(rows::sum(torch::ones({2, 2}), two_places, {ids_of({0})})[0], torch::full({1, 2}, 2.0F)));
}

TEST(RowOps, RefusesOperandsThatDoNotFit) {
  at::Tensor table = torch::zeros({4, 2}), narrow = torch::zeros({4, 1}), short_one = torch::zeros({2, 2});
  at::Tensor turned = torch::zeros({2, 4}).t(), scalar = torch::zeros({}),
             doubles = torch::zeros({4, 2}, torch::kDouble);
  const at::Tensor ids = ids_of({3}), gradient = torch::ones({1, 2}), places = torch::zeros({1}, torch::kInt);
  const at::Tensor wide_ids = ids_of({0, 1}).reshape({1, 2}), step = torch::ones({1});
  using testing::HasSubstr;
  auto adagrad = [&](at::Tensor& t, at::Tensor& s, const at::Tensor& i, const at::Tensor& g) {
    return refusal_of([&] { rows::adagrad_(t, s, i, g, kRate, 1e-10); });
  };
  auto adam = [&](at::Tensor& t, at::Tensor& m, at::Tensor& v, const at::Tensor& n) {
    return refusal_of([&] { rows::adam_(t, m, v, n, ids, gradient, kRate, 0.9, 0.999, 1e-8, 0); });
  };

  for (const at::Tensor& wrong : {wide_ids, ids.to(torch::kInt), ids_of({1})[0]}) {
    EXPECT_THAT(refusal_of([&] { rows::gather(table, wrong); }), HasSubstr("expected int64[n]"));
    EXPECT_THAT(refusal_of([&] { rows::unique(wrong, {0, 4}); }), HasSubstr("expected int64[n]"));
    EXPECT_THAT(refusal_of([&] { rows::route(wrong, {0, 4}); }), HasSubstr("expected int64[n]"));
    EXPECT_THAT(refusal_of([&] { rows::add_(table, wrong, gradient, 1); }), HasSubstr("expected int64[n]"));
    EXPECT_THAT(refusal_of([&] { rows::scatter_(table, wrong, gradient, "add"); }), HasSubstr("expected int64[n]"));
    EXPECT_THAT(refusal_of([&] { rows::sum(gradient, places, {wrong}); }), HasSubstr("expected int64[n]"));
  }
  for (at::Tensor& wrong : std::vector<at::Tensor>{turned, scalar}) {
    EXPECT_THAT(refusal_of([&] { rows::gather(wrong, ids); }), HasSubstr("contiguous"));
    EXPECT_THAT(refusal_of([&] { rows::add_(wrong, ids, gradient, 1); }), HasSubstr("contiguous"));
    EXPECT_THAT(refusal_of([&] { rows::scatter_(wrong, ids, gradient, "add"); }), HasSubstr("contiguous"));
    EXPECT_THAT(adagrad(wrong, table, ids, gradient), HasSubstr("contiguous"));
    EXPECT_THAT(adagrad(table, wrong, ids, gradient), HasSubstr("contiguous"));
    EXPECT_THAT(adam(table, wrong, table, step), HasSubstr("contiguous"));
  }
  for (const at::Tensor& wrong : {torch::ones({1, 3}), torch::ones({2, 2}), torch::ones({2}), torch::ones({1, 2, 1}),
                                  gradient.to(torch::kDouble), torch::ones({1, 4}).slice(1, 0, 4, 2)}) {
    EXPECT_THAT(refusal_of([&] { rows::add_(table, ids, wrong, 1); }), HasSubstr("cannot take"));
    EXPECT_THAT(refusal_of([&] { rows::scatter_(table, ids, wrong, "update"); }), HasSubstr("cannot take"));
    EXPECT_THAT(adagrad(table, table, ids, wrong), HasSubstr("cannot take"));
  }
  EXPECT_THAT(adagrad(table, narrow, ids, gradient), HasSubstr("cannot take"));
  EXPECT_THAT(adagrad(table, doubles, ids, gradient), HasSubstr("cannot take"));
  EXPECT_THAT(adam(table, table, narrow, step), HasSubstr("cannot take"));
  EXPECT_THAT(adam(table, table, table, torch::ones({2})), HasSubstr("one number"));
  EXPECT_THROW(rows::adagrad_(table, short_one, ids, gradient, kRate, 1e-10), Error) << "row 3 of 2";
  EXPECT_THROW(rows::scatter_(table, ids_of({4}), gradient, "update"), Error);
  EXPECT_THROW(rows::scatter_(table, ids_of({-1}), gradient, "max"), Error);
  for (const at::Tensor& wrong : {torch::zeros({1, 3}), torch::zeros({2}), torch::zeros({1, 2}, torch::kDouble),
                                  torch::zeros({2, 2}).t(), torch::zeros({})}) {
    EXPECT_THAT(refusal_of([&] { rows::expand(places, {torch::zeros({1, 2}), wrong}); }),
                HasSubstr("one shape and type"));
  }
  EXPECT_THAT(refusal_of([&] { rows::expand(places.to(torch::kLong), {gradient}); }), HasSubstr("int32[n]"));
  EXPECT_THAT(refusal_of([&] { rows::expand(places, std::vector<at::Tensor>{}); }), HasSubstr("no rows"));
  EXPECT_THAT(refusal_of([&] { rows::sum(gradient, places.to(torch::kLong), {ids}); }), HasSubstr("int32[n]"));
  EXPECT_THAT(refusal_of([&] { rows::sum(torch::ones({2, 2}), places, {ids}); }), HasSubstr("1 places"));
  EXPECT_THROW(rows::expand(torch::ones({1}, torch::kInt), {gradient}), Error) << "place 1 of 1";
}

TEST(RowOps, RefusesUndefinedOperands) {
  at::Tensor table = torch::zeros({4, 2}), none;
  const at::Tensor ids = ids_of({3}), gradient = torch::ones({1, 2}), places = torch::zeros({1}, torch::kInt);

  EXPECT_THROW(rows::gather(table, none), std::exception);
  EXPECT_THROW(rows::gather(none, ids), std::exception);
  EXPECT_THROW(rows::expand(places, {none}), std::exception);
  EXPECT_THROW(rows::expand(places, {gradient, none}), std::exception);
  EXPECT_THROW(rows::expand(none, {gradient}), std::exception);
  EXPECT_THROW(rows::sum(none, places, {ids}), std::exception);
  EXPECT_THROW(rows::sum(gradient, none, {ids}), std::exception);
  EXPECT_THROW(rows::sum(gradient, places, {none}), std::exception);
  EXPECT_THROW(rows::add_(table, none, gradient, 1), std::exception);
  EXPECT_THROW(rows::add_(table, ids, none, 1), std::exception);
  EXPECT_THROW(rows::adagrad_(table, none, ids, gradient, kRate, 1e-10), std::exception);
  EXPECT_THROW(rows::adam_(table, table, table, none, ids, gradient, kRate, 0.9, 0.999, 1e-8, 0), std::exception);
  EXPECT_THROW(rows::scatter_(table, ids, none, "add"), std::exception);
  EXPECT_THROW(rows::on_demand_(none, RowRule::kNormal, 0, 1, 7, 0), std::exception);
}

TEST(RowOps, UseATableOnDemandAsAWholeOrNotAtAll) {
  at::Tensor table = on_demand({6, 2}), plain = torch::zeros({6, 2});
  const at::Tensor ids = ids_of({0}), gradient = torch::ones({1, 2});
  std::vector<at::Tensor> views{table.narrow(0, 2, 3),    table.narrow(0, 0, 3),
                                table.reshape({12}),      table.reshape({3, 4}),
                                table.reshape({1, 6, 2}), table.view(torch::kInt).view(torch::kInt)};

  for (at::Tensor& view : views) {
    std::vector<int64_t> sizes = view.sizes().vec();
    sizes[0] = 1;
    const at::Tensor row = torch::ones(sizes, view.options());
    at::Tensor like = torch::zeros(view.sizes(), view.options());
    const auto whole = testing::HasSubstr("only be used as a whole");
    EXPECT_THAT(refusal_of([&] { rows::gather(view, ids); }), whole) << view.sizes();
    EXPECT_THAT(refusal_of([&] { rows::add_(view, ids, row, 1); }), whole) << view.sizes();
    EXPECT_THAT(refusal_of([&] { rows::scatter_(view, ids, row, "update"); }), whole) << view.sizes();
    EXPECT_THAT(refusal_of([&] { rows::adagrad_(view, like, ids, row, kRate, 1e-10); }), whole) << view.sizes();
    EXPECT_THAT(refusal_of([&] { rows::adagrad_(like, view, ids, row, kRate, 1e-10); }), whole) << view.sizes();
    EXPECT_THAT(
        refusal_of([&] { rows::adam_(like, like, view, torch::ones({1}), ids, row, kRate, 0.9, 0.999, 1e-8, 0); }),
        whole)
        << view.sizes();
  }
  EXPECT_TRUE(torch::equal(rows::gather(table.view({6, 2}), ids), rows::gather(table, ids)));
  EXPECT_TRUE(RowTable::of(table)->written_rows().empty());
}

TEST(RowOps, MakesOnlyAWholeTensorATableOnDemand) {
  at::Tensor large = torch::zeros({6, 2});
  auto begin = [](at::Tensor table, int64_t kind = RowRule::kNormal, int64_t first_row = 0) {
    return refusal_of([&] { rows::on_demand_(table, kind, 0, 1, 7, first_row); });
  };

  EXPECT_THAT(begin(large.narrow(0, 0, 3)), testing::HasSubstr("no view"));
  EXPECT_THAT(begin(large.narrow(0, 3, 3)), testing::HasSubstr("no view"));
  EXPECT_THAT(begin(torch::zeros({1, 2}).expand({6, 2})), testing::HasSubstr("no view"));
  EXPECT_THAT(begin(torch::zeros({int64_t{1} << 40, 0})), testing::HasSubstr("no view")) << "rows without elements";
  EXPECT_THAT(begin(torch::zeros({2, 2}), 3), testing::HasSubstr("rule 3"));
  EXPECT_THAT(begin(torch::zeros({2, 2}), -1), testing::HasSubstr("rule -1"));
  EXPECT_THAT(begin(torch::zeros({2, 2}), 0, -1), testing::HasSubstr("row -1"));
  EXPECT_THAT(begin(torch::zeros({2, 2}), 0, INT64_MAX - 1), testing::HasSubstr("is none")) << "places overflow";
  EXPECT_EQ(begin(torch::zeros({0, 2})), "");
  EXPECT_TRUE(torch::equal(large, torch::zeros({6, 2})));
}

}  // namespace
}  // namespace muster
