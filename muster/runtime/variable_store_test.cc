#include "muster/runtime/variable_store.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/base/status.h"

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

}  // namespace
}  // namespace muster
