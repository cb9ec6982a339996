// libFuzzer target: what stands in files of records.
#include <cstddef>
#include <cstdint>
#include <string>

#include "muster/data/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::testing_support::try_records(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
