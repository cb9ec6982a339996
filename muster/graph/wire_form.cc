#include "muster/graph/wire_form.h"

namespace muster {
namespace {

constexpr uint32_t kTypeBits = 3, kDeflateBit = 4, kSameMachineBit = 8;

}  // namespace

std::string WireForm::to_string() const {
  std::string text = type == WireType::kBFloat16 ? "bfloat16" : type == WireType::kFloat16 ? "float16" : "as it is";
  if (deflate) text += ", deflated";
  if (same_machine) text += ", on the same machine, too";
  return text;
}

uint32_t WireForm::number() const {
  return static_cast<uint32_t>(type) | (deflate ? kDeflateBit : 0) | (same_machine ? kSameMachineBit : 0);
}

std::optional<WireForm> WireForm::from_number(uint32_t number) {
  const uint32_t type = number & kTypeBits;
  if (number > (kTypeBits | kDeflateBit | kSameMachineBit)) return std::nullopt;
  if (type > static_cast<uint32_t>(WireType::kFloat16)) return std::nullopt;
  return WireForm{static_cast<WireType>(type), (number & kDeflateBit) != 0, (number & kSameMachineBit) != 0};
}

}  // namespace muster
