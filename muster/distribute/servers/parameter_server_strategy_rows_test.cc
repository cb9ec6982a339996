#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/runtime/rows/test_huge_table.h"
#include "muster/trace/rows.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::HasSubstr;

// Rows of variables in three parts on two parameter servers.
class RowsInParts : public ::testing::Test {
 protected:
  InProcessCluster cluster_{{.workers = 1, .ps = 2}};
  ParameterServerStrategy strategy_{cluster_.resolver(), {.partitioner = FixedShardsPartitioner{3}}};
  ClusterCoordinator coordinator_{strategy_};
};

TEST_F(RowsInParts, AreScatteredAsThoseOfAWholeVariable) {
  for (const int64_t rows : {32, 30}) {  // parts of 11, 11 and 10, and of 10 each
    const at::Tensor ids = rows == 32 ? torch::tensor({0, 10, 11, 12, 30, 31}) : torch::tensor({0, 10, 12, 21, 22});
    const at::Tensor start = torch::arange(rows * 2, torch::kFloat).reshape({rows, 2}) + 1;
    const at::Tensor updates = torch::arange(ids.numel() * 2, torch::kFloat).reshape({-1, 2}) + 20;
    for (Scatter how :
         {Scatter::kAdd, Scatter::kSub, Scatter::kMul, Scatter::kDiv, Scatter::kMin, Scatter::kMax, Scatter::kUpdate}) {
      Variable parts = strategy_.make<Variable>(start), whole(start);
      auto change = [how](const Variable& v) {
        return function([&v, how](at::Tensor at, at::Tensor by) { scatter(v, how, at, by); });
      };

      coordinator_.schedule(change(parts), ids, updates);
      coordinator_.join();
      change(whole)(ids, updates);

      EXPECT_EQ(parts.shards().size(), 3u);
      EXPECT_TRUE(torch::allclose(parts.value(), whole.value())) << static_cast<int>(how) << " of " << rows;
      EXPECT_FALSE(torch::equal(parts.value(), start));
    }
  }
}

TEST_F(RowsInParts, AreScatteredInBatches) {
  Variable flat = strategy_.make<Variable>(torch::zeros({6, 2}));
  Variable deep = strategy_.make<Variable>(torch::zeros({4, 3, 2}));
  const at::Tensor rows = torch::arange(16, torch::kFloat).reshape({4, 2, 2}) + 1;
  auto step = function([&](at::Tensor ids, at::Tensor updates) {
    batch_scatter_update(flat, ids.narrow(0, 0, 1).reshape({2}), updates[0]);
    batch_scatter_update(deep, ids, updates);
  });
  const at::Tensor ids = torch::tensor({{2, 0}, {1, 2}, {0, 1}, {2, 1}});

  coordinator_.schedule(step, ids, rows);
  coordinator_.join();

  at::Tensor expected = torch::zeros({4, 3, 2});
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 2; ++j) expected[i][ids[i][j].item<int64_t>()] = rows[i][j];
  }
  EXPECT_TRUE(torch::equal(deep.value(), expected));
  EXPECT_TRUE(torch::equal(flat.value()[2], rows[0][0]));
  EXPECT_TRUE(torch::equal(flat.value()[0], rows[0][1]));
}

TEST_F(RowsInParts, AreNotScatteredOutOfTheirBatch) {
  Variable deep = strategy_.make<Variable>(torch::zeros({4, 3}));
  auto step = function([&](at::Tensor ids, at::Tensor updates) { batch_scatter_update(deep, ids, updates); });
  step.program(torch::zeros({4, 1}, torch::kLong), torch::ones({4, 1}));

  coordinator_.schedule(step, torch::full({4, 1}, 3), torch::ones({4, 1}));
  const Status status = caught([&] { coordinator_.join(); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(torch::equal(deep.value(), torch::zeros({4, 3})));
}

TEST_F(RowsInParts, AreReadWithoutTheRest) {
  Variable v = strategy_.make<Variable>(torch::arange(20, torch::kFloat).reshape({10, 2}));
  auto read = function([&](at::Tensor ids) { return lookup(v, ids); });

  const at::Tensor rows = coordinator_.schedule(read, torch::tensor({9, 0, 4})).fetch();

  EXPECT_TRUE(torch::equal(rows, torch::tensor({{18.0F, 19.0F}, {0.0F, 1.0F}, {8.0F, 9.0F}})));
}

TEST_F(RowsInParts, AreToldApartFromTheWholeByTheCountOfWholeReads) {
  Variable v = strategy_.make<Variable>(torch::zeros({10, 2}));
  auto by_rows = function([&](at::Tensor ids) {
    at::Tensor rows = lookup(v, ids);
    scatter(v, Scatter::kAdd, ids, torch::ones({2, 2}));
    return rows;
  });
  auto whole_reads = [&] {
    uint64_t count = 0;
    for (int i = 0; i < 2; ++i) {
      for (const VariableInfo& info : cluster_.worker({"ps", i}).variables()) count += info.whole_reads;
    }
    return count;
  };

  for (int i = 0; i < 3; ++i) coordinator_.schedule(by_rows, torch::tensor({1, 8}));
  coordinator_.join();
  EXPECT_EQ(whole_reads(), 0u);

  v.value();
  EXPECT_EQ(whole_reads(), 3u) << "one for each part";
  coordinator_.schedule(function([&] { return v.value().sum(); })).fetch();
  EXPECT_EQ(whole_reads(), 6u);
}

// ---- Rows that are made on demand
TEST_F(RowsInParts, AreMadeOnDemandIfAsked) {
  constexpr int64_t kRows = testing_support::kHugeTableRows;
  Variable v = strategy_.make<Variable>(InitialValue::normal({kRows, 64}, 0, 1, 5).on_demand());
  auto read = function([&](at::Tensor ids) { return lookup(v, ids); });
  auto add = function([&](at::Tensor ids) { scatter(v, Scatter::kAdd, ids, torch::ones({3, 64})); });
  const at::Tensor ids = torch::tensor({int64_t{7}, kRows / 2, kRows - 1});

  const at::Tensor before = coordinator_.schedule(read, ids).fetch();
  coordinator_.schedule(add, ids);
  coordinator_.join();
  const at::Tensor after = coordinator_.schedule(read, ids).fetch();

  EXPECT_TRUE(torch::allclose(after, before + 1));
  EXPECT_NEAR(before.std().item<float>(), 1, 0.3);
  EXPECT_LT(cluster_.worker({"ps", 0}).status().resident_bytes, int64_t{8} << 30);
}

TEST_F(RowsInParts, LookTheSameInAnyNumberOfParts) {
  const InitialValue initial = InitialValue::uniform({10, 3}, -1, 1, 11).on_demand();
  Variable parts = strategy_.make<Variable>(initial), here(initial);
  ParameterServerStrategy other(cluster_.resolver());
  Variable whole = other.make<Variable>(initial);
  auto read_here = function([&](at::Tensor ids) { return lookup(here, ids); });

  EXPECT_TRUE(torch::equal(read_here(torch::arange(10)), parts.value()));
  EXPECT_TRUE(torch::equal(whole.value(), parts.value()));
  EXPECT_TRUE(torch::equal(here.value(), parts.value()));
  EXPECT_TRUE(torch::equal(initial.tensor(), parts.value()));
  EXPECT_EQ(caught([] { InitialValue(torch::ones({2})).on_demand(); }).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(caught([] { InitialValue::constant({}, 1).on_demand(); }).message(), HasSubstr("has no rows"));
}

}  // namespace
}  // namespace muster
