#include "muster/runtime/gpu/stretches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster::stretches_test {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using testing_support::Builder;

// Of a lane on the CPU, since what can be recorded is not a question of the device.
struct Found {
  explicit Found(Program program) : plan(placed(std::move(program)), devices, catalog, nullptr) {
    stretches = find_stretches(plan, 0, Aliases(plan.program));
  }
  Program placed(Program program) {
    check(program);
    return place(std::move(program), {.devices = devices.names(), .default_device = devices.default_name()});
  }

  LocalDevices devices{{.cpus = 1, .gpus = false}};
  OpCatalog catalog{};
  Plan plan;
  std::vector<Stretch> stretches;
};

TEST(Stretches, HaveWhatComesFromOutsideAndWhatIsUsedThere) {
  Builder builder;
  const ValueId w = builder.variable("w"), x = builder.argument();
  const ValueId product = builder.add(x, w), positive = builder.relu(product), sum = builder.add(positive, x);
  builder.add_(w, sum);

  const Found found(builder.finish({sum}));

  ASSERT_EQ(found.stretches.size(), 1u);
  const Stretch& stretch = found.stretches[0];
  EXPECT_EQ(stretch.begin, 0u);
  EXPECT_EQ(stretch.end, 4u);
  EXPECT_THAT(stretch.fixed, ElementsAre(w));
  EXPECT_THAT(stretch.inputs, ElementsAre(x));
  EXPECT_THAT(stretch.results, ElementsAre(sum));
}

TEST(Stretches, WorkInPlaceOnWhatTheyWrite) {
  Builder builder;
  const ValueId x = builder.argument(), y = builder.argument();
  builder.add_(x, y);
  builder.add_(x, y);
  builder.add_(x, y);
  builder.add_(x, y);

  const Found found(builder.finish({x}));

  ASSERT_EQ(found.stretches.size(), 1u);
  EXPECT_THAT(found.stretches[0].fixed, ElementsAre(x));
  EXPECT_THAT(found.stretches[0].inputs, ElementsAre(y));
}

TEST(Stretches, AreNotWorthAFewSteps) {
  Builder builder;
  const ValueId x = builder.argument();

  EXPECT_TRUE(Found(builder.finish({builder.relu(builder.relu(x))})).stretches.empty());
}

}  // namespace muster::stretches_test
