// libtorch's wheel for arm64 compiles some of its files with SVE, for CPUs that have it, and the linker took its copies
// of a template from one of them: on a CPU without SVE whoever in libtorch calls that copy dies of SIGILL (an LSTM of
// two layers does). A program looks for a symbol in this library before it looks in libtorch, so a copy here, compiled
// for every CPU, is used by all. tests/without_sve.py looks through the wheel and says which templates belong here.
#if defined(__aarch64__)

#include <ATen/core/Tensor.h>

#include <vector>

template void std::vector<at::Tensor>::_M_realloc_insert<at::Tensor&>(std::vector<at::Tensor>::iterator, at::Tensor&);

#endif
