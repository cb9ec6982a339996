#include "muster/runtime/gpu/fused_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster::fused_steps_test {

using ::testing::ElementsAre;
using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;

std::vector<std::string> fused(Program program) {
  const LocalDevices devices{{.cpus = 1, .gpus = false}};
  const OpCatalog catalog;
  check(program);
  Plan plan(place(std::move(program), {.devices = devices.names(), .default_device = devices.default_name()}), devices,
            catalog, nullptr);
  fuse_activations(plan.lanes[0], plan.program);
  std::vector<std::string> ops;
  for (const Step& step : plan.lanes[0]) ops.push_back(step.as<Step::Op>()->op.schema().name());
  return ops;
}

TEST(FuseActivations, MakesReluPartOfTheProductThatItFollows) {
  Builder builder;
  const ValueId bias = builder.argument(), x = builder.argument(), w = builder.argument();
  const ValueId product = builder.op("aten::addmm", {ref(bias), ref(x), ref(w), integer(1), integer(1)});

  EXPECT_THAT(fused(builder.finish({builder.relu(product)})), ElementsAre("aten::_addmm_activation"));
}

TEST(FuseActivations, LeavesAProductThatIsUsedOtherwise) {
  Builder builder;
  const ValueId bias = builder.argument(), x = builder.argument(), w = builder.argument();
  const ValueId product = builder.op("aten::addmm", {ref(bias), ref(x), ref(w), integer(1), integer(1)});

  EXPECT_THAT(fused(builder.finish({builder.relu(product), product})), ElementsAre("aten::addmm", "aten::relu"));
}

}  // namespace muster::fused_steps_test
