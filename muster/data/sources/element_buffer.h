#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "muster/data/column.h"
#include "muster/data/sources/text_pile.h"

namespace muster {

// Elements to draw from, in about as much memory as their bytes take: a tensor of its own takes hundreds of bytes,
// whatever is in it. Small ones that look alike lie packed after each other; others are kept as they are.
// Not thread-safe.
class ElementBuffer {
 public:
  size_t size() const { return count_; }
  void add(Columns element);
  // Takes one out; the last one gets its number. REQUIRES: number < size().
  Columns take(size_t number);
  void clear();

 private:
  struct Slot {  // of a column, in the packed elements
    bool strings = false;
    at::ScalarType type{};
    std::vector<int64_t> sizes{};
    size_t place = 0, bytes = 0;  // of a tensor, in the bytes of an element
    size_t number = 0;            // of strings, among the columns of strings
  };
  bool fits(const Columns& element) const;
  void look_at(const Columns& first);
  char* bytes_of(size_t number);
  void unpack();
  void clear_packed();

  bool packed_ = false;
  size_t count_ = 0;
  std::vector<Slot> slots_;
  size_t bytes_ = 0;  // of the tensors of an element
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::unique_ptr<TextPile> pile_ = std::make_unique<TextPile>();
  std::vector<std::deque<TextPile::Place>> texts_;  // by column of strings
  std::vector<Columns> whole_;                      // those that are not packed
};

}  // namespace muster
