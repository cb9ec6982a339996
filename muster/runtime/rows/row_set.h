// Some rows of a table, a bit for each that it has.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace muster {

// For one thread at a time.
class RowSet {
 public:
  explicit RowSet(int64_t rows) : rows_(rows), bits_(static_cast<size_t>(rows + 63) / 64) {}

  int64_t rows() const { return rows_; }  // of the table
  void add(int64_t row) { bits_[static_cast<size_t>(row) / 64] |= uint64_t{1} << (row % 64); }
  bool has(int64_t row) const { return ((bits_[static_cast<size_t>(row) / 64] >> (row % 64)) & 1) != 0; }
  int64_t count() const {
    int64_t count = 0;
    for (uint64_t word : bits_) count += std::popcount(word);
    return count;
  }
  // The first one from `row` on; rows() if there is none.
  int64_t next(int64_t row) const {
    if (row >= rows_) return rows_;
    size_t word = static_cast<size_t>(row) / 64;
    uint64_t left = bits_[word] & (~uint64_t{0} << (row % 64));
    while (left == 0) {
      if (++word == bits_.size()) return rows_;
      left = bits_[word];
    }
    return static_cast<int64_t>(word) * 64 + std::countr_zero(left);
  }
  // The next `most` of them from `row` on, or as many as there are, and where to go on.
  std::pair<std::vector<int64_t>, int64_t> take(int64_t row, int64_t most) const {
    std::vector<int64_t> taken;
    for (row = next(row); row < rows_ && static_cast<int64_t>(taken.size()) < most; row = next(row + 1)) {
      taken.push_back(row);
    }
    return {std::move(taken), row};
  }

 private:
  int64_t rows_;
  std::vector<uint64_t> bits_;
};

}  // namespace muster
