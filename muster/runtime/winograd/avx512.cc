#if defined(__AVX512F__)
#define MUSTER_LANES 16
#define MUSTER_REGISTERS 32
#include "muster/runtime/winograd/kernels.inc"

namespace muster {
const WinogradKernels* winograd_avx512() { return &kKernels; }
}  // namespace muster
#else
#include "muster/runtime/winograd/kernels.h"

namespace muster {
const WinogradKernels* winograd_avx512() { return nullptr; }
}  // namespace muster
#endif
