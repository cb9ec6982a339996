#include "muster/runtime/executor/shared_copies.h"

#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster::shared_copies_test {

using testing_support::Builder;

constexpr char kOther[] = "/device:CPU:1";

// Whether the copy of the variable for the other device is no copy.
bool is_shared(Builder& builder, ValueId variable, const std::vector<ValueId>& outputs) {
  Program program = builder.finish(outputs);
  check(program);
  const LocalDevices devices({.cpus = 2, .gpus = false});
  const OpCatalog catalog;
  const Plan plan(place(std::move(program), {.devices = devices.names(), .default_device = devices.default_name()}),
                  devices, catalog, nullptr);
  size_t found = 0;
  bool shared = false;
  for (const auto& lane : plan.lanes) {
    for (const Step& step : lane) {
      const auto* copy = step.as<Step::Copy>();
      if (copy == nullptr || step.slots[0].value != variable) continue;
      ++found;
      shared = copy->share;
    }
  }
  EXPECT_EQ(found, 1u);
  return shared;
}

struct TwoDevices : Builder {
  ValueId v = variable("v"), x = argument();
};

TEST(SharedCopies, AreReadWhereTheVariableIsBeforeItChanges) {
  TwoDevices b;
  const ValueId gradient = b.relu(b.add(b.v, b.x, kOther), kOther);
  b.add_(b.v, gradient);

  EXPECT_TRUE(is_shared(b, b.v, {}));
}

TEST(SharedCopies, AreCopiesIfTheVariableMayChangeMeanwhile) {
  TwoDevices b;
  const ValueId read = b.add(b.v, b.x, kOther);
  b.add_(b.v, b.x);

  EXPECT_FALSE(is_shared(b, b.v, {b.relu(read, kOther)}));
}

TEST(SharedCopies, AreReadBeforeAWriteThatWaitsForSomethingLaterOfTheirDevice) {
  TwoDevices b;
  const ValueId read = b.add(b.v, b.x, kOther);
  b.add_(b.v, b.relu(b.x, kOther));

  EXPECT_TRUE(is_shared(b, b.v, {read}));
}

TEST(SharedCopies, AreCopiesIfTheVariableHasChangedBefore) {
  TwoDevices b;
  b.add_(b.v, b.x);
  const ValueId gradient = b.relu(b.v, kOther);
  b.add_(b.v, gradient);

  EXPECT_FALSE(is_shared(b, b.v, {}));
}

}  // namespace muster::shared_copies_test
