#include "muster/collective/sums_in_order.h"

#include <ATen/Functions.h>

namespace muster {
namespace {

bool sums_in_float(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

}  // namespace

void reduce_into(at::Tensor& all, Reduction how, const std::vector<at::Tensor>& by_rank) {
  if (by_rank.size() == 1) {
    all.copy_(by_rank[0]);
    return;
  }
  if (how == Reduction::kSum && (sums_in_float(all.scalar_type()) || sums_in_float(by_rank[0].scalar_type()))) {
    at::Tensor sum = by_rank[0].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    for (size_t rank = 1; rank < by_rank.size(); ++rank) sum.add_(by_rank[rank]);
    all.copy_(sum);
    return;
  }
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const at::Tensor &so_far = rank == 1 ? by_rank[0] : all, &next = by_rank[rank];
    switch (how) {
      case Reduction::kSum: at::add_out(all, so_far, next); break;
      case Reduction::kMin: at::minimum_out(all, so_far, next); break;
      case Reduction::kMax: at::maximum_out(all, so_far, next); break;
    }
  }
}

at::Tensor reduced(Reduction how, const std::vector<at::Tensor>& by_rank) {
  at::Tensor all = at::empty_like(by_rank[0]);
  reduce_into(all, how, by_rank);
  return all;
}

at::Tensor reduced_inside(Reduction how, const std::vector<at::Tensor>& by_rank) {
  if (by_rank.size() == 1) return by_rank[0];
  const bool rounds_later = how == Reduction::kSum && sums_in_float(by_rank[0].scalar_type());
  const at::ScalarType type = rounds_later ? at::kFloat : by_rank[0].scalar_type();
  at::Tensor all = at::empty(by_rank[0].sizes(), by_rank[0].options().dtype(type));
  reduce_into(all, how, by_rank);
  return all;
}

at::Tensor reduced(Reduction how, const std::vector<at::Tensor>& by_rank, const Machines& machines) {
  if (!machines.several()) return reduced(how, by_rank);
  std::vector<at::Tensor> by_machine;
  for (const std::vector<int>& inside : machines.ranks) {
    std::vector<at::Tensor> of_one;
    for (const int rank : inside) of_one.push_back(by_rank[static_cast<size_t>(rank)]);
    by_machine.push_back(reduced_inside(how, of_one));
  }
  at::Tensor all = at::empty_like(by_rank[0]);
  reduce_into(all, how, by_machine);
  return all;
}

}  // namespace muster
