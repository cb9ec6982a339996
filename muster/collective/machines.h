// Which ranks of a group are processes of the same machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// A value. The same at all ranks of a group, since sums are added up in the order that it gives.
struct Machines {
  std::vector<int> of_rank{};             // the number of its machine
  std::vector<std::vector<int>> ranks{};  // of each machine, in their order; machines in the order of their first ones

  // `near`: a row of every rank, with ones for those that it shares memory with. Of ranks that do not agree on who is
  // of one machine, as where processes see different networks, nothing is known.
  static Machines of(const at::Tensor& near);

  // Whether one of them has several ranks.
  bool shared() const { return ranks.size() < of_rank.size(); }
  // And there are several: then it pays to sum up inside each of them first.
  bool several() const { return ranks.size() > 1 && shared(); }
  // So many ranks of each machine can divide its work among themselves.
  int lanes() const;
  // The place of a rank among those of its machine.
  int place_of(int rank) const;
};

}  // namespace muster
