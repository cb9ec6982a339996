// libFuzzer target for exported models; its corpus is muster/fit/fuzz_corpus.
#include <cstddef>
#include <cstdint>

#include "muster/fit/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_model({reinterpret_cast<const char*>(data), size});
  return 0;
}
