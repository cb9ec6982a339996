// libFuzzer target: what says which tasks there are.
#include <cstddef>
#include <cstdint>
#include <string>

#include "muster/cluster/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_cluster(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
