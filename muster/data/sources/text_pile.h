#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/data/column.h"

namespace muster {

// Texts in little more memory than their bytes: 24 beside those of each. A short one lies in a slot of a block, and a
// slot that was given back waits for the next text of its size. Long ones stay the strings that they are. Not
// thread-safe.
class TextPile {
 public:
  struct Text {
    std::string bytes;
    RecordOrigin origin;
  };
  using Place = char*;  // of a text, until it is taken

  TextPile() = default;
  ~TextPile();
  TextPile(TextPile&&) = delete;

  Place add(Text text);
  Text take(Place place);

 private:
  static constexpr size_t kLongest = 1'024;  // of those in slots
  static constexpr size_t kSlotStep = 8, kBlock = size_t{1} << 18;
  struct Header {
    int64_t number;
    uint32_t file, length;
  };

  char* slot_of(size_t bytes);
  void give_back(char* slot, size_t bytes);

  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t used_ = kBlock;                                                   // of the last block
  std::array<char*, (kLongest + sizeof(Header)) / kSlotStep + 2> free_{};  // by size; each has the address of the next
  std::vector<std::unique_ptr<std::string>> long_;                         // by what their slot says
  std::vector<uint32_t> long_free_;
  std::vector<const RecordFile*> files_;
  absl::flat_hash_map<const RecordFile*, uint32_t> file_numbers_;
};

}  // namespace muster
