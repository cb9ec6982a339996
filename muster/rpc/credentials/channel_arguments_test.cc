#include "muster/rpc/credentials/channel_arguments.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(ChannelArguments, SetTheProcessUpOnceSoThatWhatItsOwnerSetsAfterwardsStays) {
  set_process_up();
  int arguments = 0;

  set_transport_arguments([&](const char*, int) { ++arguments; });

  EXPECT_GT(arguments, 0);
  EXPECT_FALSE(set_process_up());
}

}  // namespace
}  // namespace muster
