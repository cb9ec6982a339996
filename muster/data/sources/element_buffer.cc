#include "muster/data/sources/element_buffer.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr size_t kSmallElement = 1024;       // bytes; larger ones may as well be tensors
constexpr size_t kElementsPerBlock = 4'096;  // at most, 4 MiB

}  // namespace

void ElementBuffer::look_at(const Columns& first) {
  slots_.clear();
  bytes_ = 0;
  size_t strings = 0;
  packed_ = true;
  for (const Column& column : first) {
    Slot slot{.strings = column.holds_strings()};
    if (slot.strings) {
      packed_ = packed_ && column.sizes().empty();
      slot.number = strings++;
    } else {
      const at::Tensor& tensor = column.tensor();
      packed_ = packed_ && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
                !tensor.is_neg() && tensor.nbytes() <= kSmallElement;
      slot.type = tensor.scalar_type();
      slot.sizes = tensor.sizes().vec();
      slot.place = bytes_;
      slot.bytes = tensor.nbytes();
      bytes_ += slot.bytes;
    }
    slots_.push_back(std::move(slot));
  }
  packed_ = packed_ && bytes_ <= kSmallElement;
  texts_.assign(strings, {});
}

bool ElementBuffer::fits(const Columns& element) const {
  if (element.size() != slots_.size()) return false;
  for (size_t i = 0; i < element.size(); ++i) {
    const Slot& slot = slots_[i];
    if (element[i].holds_strings() != slot.strings) return false;
    if (slot.strings) {
      if (!element[i].sizes().empty()) return false;
      continue;
    }
    const at::Tensor& tensor = element[i].tensor();
    if (tensor.scalar_type() != slot.type || tensor.sizes() != slot.sizes || !tensor.is_cpu() || tensor.is_conj() ||
        tensor.is_neg() || tensor.layout() != at::kStrided) {
      return false;
    }
  }
  return true;
}

char* ElementBuffer::bytes_of(size_t number) {
  return blocks_[number / kElementsPerBlock].get() + number % kElementsPerBlock * bytes_;
}

void ElementBuffer::add(Columns element) {
  if (count_ == 0) {
    clear();
    look_at(element);
  }
  if (packed_ && !fits(element)) unpack();
  if (!packed_) {
    whole_.push_back(std::move(element));
    ++count_;
    return;
  }
  if (count_ / kElementsPerBlock >= blocks_.size()) {
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(kElementsPerBlock * bytes_));
  }
  PlainTensors plain;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.strings) {
      const RecordOrigin origin = element[i].strings().origin(0);
      texts_[slot.number].push_back(pile_->add({std::move(element[i]).take_text(), origin}));
    } else if (slot.bytes > 0) {
      const at::Tensor tensor = element[i].tensor().contiguous();
      std::memcpy(bytes_of(count_) + slot.place, tensor.const_data_ptr(), slot.bytes);
    }
  }
  ++count_;
}

Columns ElementBuffer::take(size_t number) {
  if (!packed_) {
    std::swap(whole_[number], whole_.back());
    Columns element = std::move(whole_.back());
    whole_.pop_back();
    --count_;
    return element;
  }
  PlainTensors plain;
  Columns element;
  element.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    if (slot.strings) {
      std::deque<TextPile::Place>& texts = texts_[slot.number];
      std::swap(texts[number], texts.back());
      TextPile::Text text = pile_->take(texts.back());
      texts.pop_back();
      element.emplace_back(Strings(std::move(text.bytes), text.origin));
    } else {
      at::Tensor tensor = at::empty(slot.sizes, at::TensorOptions(slot.type));
      if (slot.bytes > 0) std::memcpy(tensor.mutable_data_ptr(), bytes_of(number) + slot.place, slot.bytes);
      element.emplace_back(std::move(tensor));
    }
  }
  --count_;
  if (number != count_ && bytes_ > 0) std::memcpy(bytes_of(number), bytes_of(count_), bytes_);
  return element;
}

void ElementBuffer::unpack() {
  std::vector<Columns> whole(count_);
  while (count_ > 0) {
    const size_t last = count_ - 1;
    whole[last] = take(last);
  }
  count_ = whole.size();
  clear_packed();
  whole_ = std::move(whole);
}

void ElementBuffer::clear_packed() {
  packed_ = false;
  blocks_.clear();
  texts_.clear();
  pile_ = std::make_unique<TextPile>();
}

void ElementBuffer::clear() {
  clear_packed();
  whole_.clear();
  count_ = 0;
}

}  // namespace muster
