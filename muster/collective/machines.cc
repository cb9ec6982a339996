#include "muster/collective/machines.h"

#include <algorithm>
#include <limits>

namespace muster {

Machines Machines::of(const at::Tensor& near) {
  const int size = static_cast<int>(near.size(0));
  const at::Tensor rows = near.to(at::kBool).contiguous();
  const bool* shares = rows.const_data_ptr<bool>();
  const auto together = [&](int a, int b) { return a == b || shares[int64_t{a} * size + b]; };
  Machines made;
  for (int rank = 0; rank < size; ++rank) {
    int first = 0;
    while (!together(rank, first)) ++first;
    if (first == rank) {
      made.of_rank.push_back(static_cast<int>(made.ranks.size()));
      made.ranks.emplace_back();
    } else {
      made.of_rank.push_back(made.of_rank[static_cast<size_t>(first)]);
    }
    made.ranks[static_cast<size_t>(made.of_rank.back())].push_back(rank);
  }
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (together(a, b) != (made.of_rank[static_cast<size_t>(a)] == made.of_rank[static_cast<size_t>(b)])) return {};
    }
  }
  return made;
}

int Machines::lanes() const {
  size_t least = std::numeric_limits<int>::max();
  for (const std::vector<int>& of_one : ranks) least = std::min(least, of_one.size());
  return static_cast<int>(least);
}

int Machines::place_of(int rank) const {
  const std::vector<int>& inside = ranks[static_cast<size_t>(of_rank[static_cast<size_t>(rank)])];
  return static_cast<int>(std::find(inside.begin(), inside.end(), rank) - inside.begin());
}

}  // namespace muster
