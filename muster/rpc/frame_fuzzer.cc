// libFuzzer target: what a peer writes on the wire.
#include <cstddef>
#include <cstdint>

#include "muster/rpc/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_frame({reinterpret_cast<const char*>(data), size});
  return 0;
}
