#define MUSTER_LANES 4
#if defined(__aarch64__)
#define MUSTER_REGISTERS 32
#else
#define MUSTER_REGISTERS 16
#endif
#include "muster/runtime/winograd/kernels.inc"

namespace muster {
const WinogradKernels* winograd_any() { return &kKernels; }
}  // namespace muster
