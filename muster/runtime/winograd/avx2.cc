#if defined(__AVX2__)
#define MUSTER_LANES 8
#define MUSTER_REGISTERS 16
#include "muster/runtime/winograd/kernels.inc"

namespace muster {
const WinogradKernels* winograd_avx2() { return &kKernels; }
}  // namespace muster
#else
#include "muster/runtime/winograd/kernels.h"

namespace muster {
const WinogradKernels* winograd_avx2() { return nullptr; }
}  // namespace muster
#endif
