#include "muster/runtime/variables/variable_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

const TensorSpec kPair{DType::kFloat, {2}};

TEST(VariableStore, FindsAVariableByName) {
  VariableStore store;
  auto cell = store.declare("w", kPair, at::kCPU);

  EXPECT_EQ(store.find("w"), cell);
  EXPECT_EQ(store.declare("w", kPair, at::kCPU), cell);
  EXPECT_EQ(store.find("v"), nullptr);
}

TEST(VariableStore, NumbersNamesThatAreTaken) {
  VariableStore store;

  EXPECT_EQ(store.declare_new("w", kPair, at::kCPU)->name(), "w");
  EXPECT_EQ(store.declare_new("w", kPair, at::kCPU)->name(), "w_1");
  EXPECT_EQ(store.declare_new("w", kPair, at::kCPU)->name(), "w_2");
}

TEST(VariableStore, RefusesAnotherShapeUnderTheSameName) {
  VariableStore store;
  store.declare("w", kPair, at::kCPU);

  try {
    store.declare("w", {DType::kFloat, {3}}, at::kCPU);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().message(), "variable \"w\" is float32[2], but the program declares it as float32[3]");
  }
}

TEST(VariableCell, WritesInPlaceWhenNobodyReads) {
  VariableCell cell("w", kPair, at::kCPU);
  cell.assign(torch::ones({2}));
  const void* memory = cell.read().data_ptr();

  cell.assign(torch::zeros({2}));

  EXPECT_EQ(cell.read().data_ptr(), memory);
  EXPECT_EQ(cell.version(), 2u);
}

TEST(VariableCell, WritesToACopyWhenSomebodyHoldsAView) {
  VariableCell cell("w", kPair, at::kCPU);
  cell.assign(torch::ones({2}));
  at::Tensor view = cell.read().slice(0, 0, 1);

  at::Tensor target = cell.begin_write();
  target.add_(1);
  cell.end_write();

  EXPECT_EQ(view.item<float>(), 1);
  EXPECT_TRUE(torch::equal(cell.read(), torch::full({2}, 2.0F)));
}

TEST(VariableCell, StaysUninitializedWhenItsFirstWriteFails) {
  VariableCell cell("w", kPair, at::kCPU);

  cell.begin_write(/*whole=*/true);
  cell.end_write(/*keep=*/false);

  EXPECT_FALSE(cell.initialized());
  EXPECT_THROW(cell.read(), Error);
}

TEST(VariableCell, KeepsItsValueWhenAWholeWriteFailsWhileSomebodyReads) {
  VariableCell cell("w", kPair, at::kCPU);
  cell.assign(torch::ones({2}));
  const at::Tensor held = cell.read();

  cell.begin_write(/*whole=*/true);
  cell.end_write(/*keep=*/false);

  EXPECT_TRUE(at::equal(cell.read(), torch::ones({2})));
}

TEST(VariableCell, MakesReadersWaitForAWriter) {
  VariableCell cell("w", kPair, at::kCPU);
  cell.assign(torch::zeros({2}));
  at::Tensor target = cell.begin_write();
  target[0] = 1;

  at::Tensor seen;
  std::jthread reader([&] { seen = cell.read(); });
  target[1] = 1;
  target.reset();
  cell.end_write();
  reader.join();

  EXPECT_TRUE(torch::equal(seen, torch::ones({2})));
}

TEST(VariableCell, RefusesAValueOfAnotherShape) {
  VariableCell cell("w", kPair, at::kCPU);

  try {
    cell.assign(torch::ones({3}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().message(), "variable \"w\" is float32[2]; cannot assign float32[3]");
  }
}

// ---- Too little memory
// No more memory than there is now, and a little for what is small.
class [[nodiscard]] ScopedMemoryLimit {
 public:
  ScopedMemoryLimit() {
    getrlimit(RLIMIT_AS, &before_);
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (64 << 20);
    setrlimit(RLIMIT_AS, &limit);
  }
  ~ScopedMemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  ScopedMemoryLimit(const ScopedMemoryLimit&) = delete;
  ScopedMemoryLimit& operator=(const ScopedMemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// Rows that are made on demand: a table that is large and takes no memory.
class LargeVariable : public testing::Test {
 protected:
  LargeVariable() {
    at::Tensor table = RowTable::zeros(cell_.spec());
    RowTable::begin(table, {.a = 7});
    cell_.replace(std::move(table));
  }

  void expect_its_value() {
    ASSERT_TRUE(cell_.initialized());
    EXPECT_EQ(rows::gather(cell_.read(/*by_rows=*/true), torch::tensor({int64_t{5}})).item<float>(), 7);
  }

  VariableCell cell_{"table", {DType::kFloat, {int64_t{1} << 28, 1}}, at::kCPU};
};

TEST_F(LargeVariable, KeepsItsValueWhenThereIsNoMemoryForAWholeWrite) {
  {
    ScopedMemoryLimit limit;
    EXPECT_ANY_THROW(cell_.begin_write(/*whole=*/true));
    EXPECT_ANY_THROW(cell_.begin_write());
    EXPECT_ANY_THROW(cell_.read());
  }

  expect_its_value();
}

TEST_F(LargeVariable, IsReplacedWithoutMoreMemoryThanTheNewValueHas) {
  at::Tensor other = RowTable::zeros(cell_.spec());
  RowTable::begin(other, {.a = 7});
  const at::Tensor held = cell_.read(/*by_rows=*/true);

  ScopedMemoryLimit limit;
  cell_.replace(std::move(other));

  expect_its_value();
}

TEST(VariableCell, LetsOthersWriteAfterAnAssignmentThatFailed) {
  VariableCell cell("w", kPair, at::kCPU);
  cell.assign(torch::ones({2}));

  EXPECT_ANY_THROW(cell.assign(torch::ones({2}, torch::kMeta)));  // which has no elements to copy
  cell.assign(torch::zeros({2}));

  EXPECT_TRUE(torch::equal(cell.read(), torch::zeros({2})));
}

class VariableInColumns : public testing::Test {
 protected:
  VariableInColumns() { cell_.assign(values_); }

  void write_in_columns(double number) {
    at::Tensor target = cell_.begin_write(false, false, MatrixOrder::kColumns);
    target.add_(number);
    target.reset();
    cell_.end_write();
  }
  bool is_in_columns() { return in_columns(cell_.read(false, MatrixOrder::kEither)); }

  const at::Tensor values_ = torch::arange(6.0F).view({2, 3});
  VariableCell cell_{"w", {DType::kFloat, {2, 3}}, at::kCPU};
};

TEST_F(VariableInColumns, IsTurnedForThoseWhoWantColumnsAndBackForAllOthers) {
  write_in_columns(1);
  EXPECT_TRUE(is_in_columns());

  EXPECT_TRUE(cell_.read().is_contiguous());
  EXPECT_TRUE(torch::equal(cell_.read(), values_ + 1));
  EXPECT_FALSE(is_in_columns());

  write_in_columns(1);
  EXPECT_TRUE(cell_.begin_read().is_contiguous());
  cell_.end_read();

  write_in_columns(1);
  EXPECT_TRUE(cell_.begin_write().is_contiguous());
  cell_.end_write();
  EXPECT_TRUE(torch::equal(cell_.read(), values_ + 3));
}

TEST_F(VariableInColumns, StaysSoForWritersAndReadersWhoTakeIt) {
  write_in_columns(1);
  const void* memory = cell_.read(false, MatrixOrder::kEither).data_ptr();

  EXPECT_EQ(cell_.begin_read(false, MatrixOrder::kEither).data_ptr(), memory);
  cell_.end_read();
  write_in_columns(1);

  EXPECT_EQ(cell_.read(false, MatrixOrder::kEither).data_ptr(), memory);
  EXPECT_TRUE(torch::equal(cell_.read(false, MatrixOrder::kEither), values_ + 2));
}

TEST_F(VariableInColumns, LeavesWhatReadersHoldAsItWas) {
  const at::Tensor rows = cell_.read();
  write_in_columns(1);
  const at::Tensor columns = cell_.read(false, MatrixOrder::kEither);
  write_in_columns(1);

  EXPECT_TRUE(torch::equal(rows, values_));
  EXPECT_TRUE(torch::equal(columns, values_ + 1));
  EXPECT_TRUE(is_in_columns());
  EXPECT_TRUE(torch::equal(cell_.read(), values_ + 2));
}

TEST_F(VariableInColumns, IsInRowsAfterItIsAssigned) {
  write_in_columns(1);

  cell_.assign(values_);

  EXPECT_FALSE(is_in_columns());
  EXPECT_TRUE(torch::equal(cell_.read(), values_));
}

TEST_F(VariableInColumns, StaysInRowsWhenItWasTurnedBackTooSoonTooOften) {
  for (int i = 0; i < 4; ++i) {
    write_in_columns(1);
    EXPECT_TRUE(is_in_columns());
    cell_.read();
  }

  write_in_columns(1);

  EXPECT_FALSE(is_in_columns());
  EXPECT_TRUE(torch::equal(cell_.read(), values_ + 5));
}

TEST_F(VariableInColumns, IsTurnedAgainAndAgainIfManyWritesComeInBetween) {
  for (int i = 0; i < 10; ++i) {
    for (int write = 0; write < 20; ++write) write_in_columns(1);
    EXPECT_TRUE(is_in_columns());
    EXPECT_TRUE(torch::equal(cell_.read(), values_ + 20 * (i + 1)));
  }
}

// The failure of what waits for a cell that somebody else writes to, once that is cancelled.
Status cancelled_wait(const std::function<void(VariableCell&, const Cancellation*)>& wait) {
  VariableCell cell("v", {DType::kFloat, {2}}, at::kCPU);
  cell.assign(torch::ones({2}));
  cell.begin_write();
  Cancellation cancellation;
  Status status;
  std::thread waiter([&] {
    try {
      wait(cell, &cancellation);
    } catch (const Error& error) {
      status = error.status();
    }
  });
  cancellation.cancel(Status(StatusCode::kDeadlineExceeded, "late"));
  waiter.join();
  cell.end_write();
  cell.begin_read();  // nobody waits for it any more
  cell.end_read();
  return status;
}

TEST(VariableCell, LetsAWriterGoWhoseCallIsCancelled) {
  const Status status = cancelled_wait([](VariableCell& cell, const Cancellation* cancellation) {
    cell.begin_write(false, false, MatrixOrder::kRows, cancellation);
  });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

TEST(VariableCell, LetsReadersGoWhoseCallIsCancelled) {
  const Status snapshot = cancelled_wait(
      [](VariableCell& cell, const Cancellation* cancellation) { cell.read(false, MatrixOrder::kRows, cancellation); });
  const Status held = cancelled_wait([](VariableCell& cell, const Cancellation* cancellation) {
    cell.begin_read(false, MatrixOrder::kRows, cancellation);
  });

  EXPECT_EQ(snapshot.code(), StatusCode::kDeadlineExceeded) << snapshot;
  EXPECT_EQ(held.code(), StatusCode::kDeadlineExceeded) << held;
}

}  // namespace
}  // namespace muster
