#include "muster/data/sources/text_pile.h"

#include <cstring>
#include <limits>
#include <utility>

namespace muster {
namespace {

constexpr uint32_t kIsLong = std::numeric_limits<uint32_t>::max();  // its length is that of the string

}  // namespace

TextPile::~TextPile() = default;

char* TextPile::slot_of(size_t bytes) {
  const size_t steps = (bytes + kSlotStep - 1) / kSlotStep;
  if (char* const slot = free_[steps]) {
    std::memcpy(&free_[steps], slot, sizeof(char*));
    return slot;
  }
  if (used_ + steps * kSlotStep > kBlock) {
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(kBlock));
    used_ = 0;
  }
  char* const slot = blocks_.back().get() + used_;
  used_ += steps * kSlotStep;
  return slot;
}

void TextPile::give_back(char* slot, size_t bytes) {
  const size_t steps = (bytes + kSlotStep - 1) / kSlotStep;
  std::memcpy(slot, &free_[steps], sizeof(char*));
  free_[steps] = slot;
}

TextPile::Place TextPile::add(Text text) {
  const auto [known, is_new] = file_numbers_.try_emplace(text.origin.file, static_cast<uint32_t>(files_.size()));
  if (is_new) files_.push_back(text.origin.file);
  const bool is_long = text.bytes.size() > kLongest;
  const Header header{text.origin.number, known->second, is_long ? kIsLong : static_cast<uint32_t>(text.bytes.size())};
  char* const slot = slot_of(sizeof header + (is_long ? sizeof(uint32_t) : text.bytes.size()));
  std::memcpy(slot, &header, sizeof header);
  if (!is_long) {
    std::memcpy(slot + sizeof header, text.bytes.data(), text.bytes.size());
    return slot;
  }
  if (long_free_.empty()) {
    long_free_.push_back(static_cast<uint32_t>(long_.size()));
    long_.emplace_back();
  }
  const uint32_t number = long_free_.back();
  long_free_.pop_back();
  long_[number] = std::make_unique<std::string>(std::move(text.bytes));
  std::memcpy(slot + sizeof header, &number, sizeof number);
  return slot;
}

TextPile::Text TextPile::take(Place place) {
  Header header{};
  std::memcpy(&header, place, sizeof header);
  Text text{.bytes = {}, .origin = {files_[header.file], header.number}};
  if (header.length == kIsLong) {
    uint32_t number = 0;
    std::memcpy(&number, place + sizeof header, sizeof number);
    text.bytes = std::move(*std::exchange(long_[number], nullptr));
    long_free_.push_back(number);
    give_back(place, sizeof header + sizeof number);
  } else {
    text.bytes.assign(place + sizeof header, header.length);
    give_back(place, sizeof header + header.length);
  }
  return text;
}

}  // namespace muster
