// libFuzzer target for files of checkpoints; its corpus is muster/io/fuzz_corpus.
#include <cstddef>
#include <cstdint>

#include "muster/io/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_checkpoint({reinterpret_cast<const char*>(data), size});
  return 0;
}
