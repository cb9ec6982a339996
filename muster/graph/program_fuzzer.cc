// libFuzzer target: `make fuzz` builds and runs it on muster/graph/fuzz_corpus.
#include <cstddef>
#include <cstdint>

#include "muster/graph/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_program({reinterpret_cast<const char*>(data), size});
  return 0;
}
