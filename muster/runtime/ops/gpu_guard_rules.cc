// Ops whose CUDA kernels assert what they do not expect. On the CPU each of them says so with an exception.
#include "muster/runtime/ops/op_guards.h"

namespace muster {
namespace {

using enum Must;

constexpr GuardRule kGpuRules[] = {
    // Rows and elements by number.
    GuardRule{"aten::index_select", "index", kIndex, "self[dim]"},
    GuardRule{"aten::gather", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter_add", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter_add_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter_reduce", "index", kIndex, "self[dim]"},
    GuardRule{"aten::scatter_reduce_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_add", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_add_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_copy", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_copy_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_reduce", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_reduce_", "index", kIndex, "self[dim]"},
    GuardRule{"aten::index_fill", "index", kIndexFromEnd, "self[dim]"},
    GuardRule{"aten::index_fill_", "index", kIndexFromEnd, "self[dim]"},
    GuardRule{"aten::take", "index", kIndexFromEnd, "self"},
    GuardRule{"aten::put", "index", kIndexFromEnd, "self"},
    GuardRule{"aten::put_", "index", kIndexFromEnd, "self"},
    GuardRule{"aten::index", "indices", kIndexEach, "self"},
    GuardRule{"aten::index_put", "indices", kIndexEach, "self"},
    GuardRule{"aten::index_put_", "indices", kIndexEach, "self"},
    GuardRule{"aten::_index_put_impl_", "indices", kIndexEach, "self"},
    GuardRule{"aten::embedding", "indices", kIndex, "weight[0]"},

    // Classes.
    GuardRule{"aten::nll_loss_forward", "target", kIndexOrSkip, "self[-1] or ignore_index"},
    GuardRule{"aten::nll_loss_backward", "target", kIndexOrSkip, "self[-1] or ignore_index"},
    GuardRule{"aten::nll_loss2d_forward", "target", kIndexOrSkip, "self[1] or ignore_index"},
    GuardRule{"aten::nll_loss2d_backward", "target", kIndexOrSkip, "self[1] or ignore_index"},
    GuardRule{"aten::multi_margin_loss", "target", kIndex, "self[-1]"},
    GuardRule{"aten::multi_margin_loss_backward", "target", kIndex, "self[-1]"},

    // Probabilities.
    GuardRule{"aten::binary_cross_entropy", "self", kBeFraction},
    GuardRule{"aten::binary_cross_entropy_backward", "self", kBeFraction},
    GuardRule{"aten::bernoulli", "self", kBeFraction},
    GuardRule{"aten::bernoulli_", "p", kBeFraction},
    GuardRule{"aten::multinomial", "self", kBeWeights},
};

}  // namespace

std::span<const GuardRule> gpu_guard_rules() { return kGpuRules; }

}  // namespace muster
