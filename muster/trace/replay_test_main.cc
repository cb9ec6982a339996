// The main program of the tests of this folder, and of the process that replays for them.
#include <gmock/gmock.h>

#include <cstdlib>

#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/replay_test.h"

int main(int argc, char** argv) {
  if (std::getenv(muster::kReplayerVariable) != nullptr) return muster::replay_for_parent();
  at::set_num_threads(1);
  muster::set_local_options({.devices = {.cpus = 2, .gpus = false}, .exact = true});
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
