// libFuzzer target: programs, from their bytes to a run.
#include <cstddef>
#include <cstdint>

#include "muster/runtime/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::run_program({reinterpret_cast<const char*>(data), size});
  return 0;
}
