#include <charconv>
#include <limits>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/fingerprint.h"
#include "muster/data/preprocessing/layer_state.h"
#include "muster/data/preprocessing/layer_values.h"

namespace muster {
namespace {

constexpr std::string_view kHashing = "hashing";

class Hashing final : public Preprocessing {
 public:
  explicit Hashing(const HashingOptions& options) : options_(options) {
    check_option(kHashing, "bins", options.bins, 1, std::numeric_limits<int64_t>::max());
    // Keras: the only bin is not given to the mask alone.
    masks_ = options.mask_value && options.bins > 1;
  }

  Column operator()(const Column& in) const override {
    if (options_.salt)
      return hashed(in, [key = *options_.salt](std::string_view bytes) { return siphash(key, bytes); });
    return hashed(in, fingerprint64);
  }

  bool elementwise() const override { return true; }
  State state() const override {
    State state{std::string(kHashing), {{"bins", number_column(options_.bins)}}};
    if (options_.salt) {
      const auto& [first, second] = *options_.salt;
      state.values["salt"] = numbers_column({static_cast<int64_t>(first), static_cast<int64_t>(second)});
    }
    if (options_.mask_value) {
      const auto* text = std::get_if<std::string>(&*options_.mask_value);
      state.values["mask_value"] = text ? text_column(*text) : number_column(std::get<int64_t>(*options_.mask_value));
    }
    return state;
  }

 private:
  template <class Hash>
  at::Tensor hashed(const Column& in, const Hash& hash) const {
    const uint64_t shift = masks_ ? 1 : 0, bins = static_cast<uint64_t>(options_.bins) - shift;
    const auto bin = [&](std::string_view bytes) { return static_cast<int64_t>(hash(bytes) % bins + shift); };
    if (in.holds_strings()) {
      const std::string* mask = mask_of<std::string>(in);
      const Strings& strings = in.strings();
      at::Tensor result = empty_indices(in.sizes());
      int64_t* out = result.mutable_data_ptr<int64_t>();
      const size_t count = strings.count();
      for (size_t i = 0; i < count; ++i) {
        const std::string_view value = strings[i];
        out[i] = mask && value == *mask ? 0 : bin(value);
      }
      return result;
    }
    const at::Tensor integers = integers_in(kHashing, in, "strings or whole numbers");
    const int64_t* mask = mask_of<int64_t>(in);
    const int64_t* values = integers.const_data_ptr<int64_t>();
    at::Tensor result = empty_indices(in.sizes());
    int64_t* out = result.mutable_data_ptr<int64_t>();
    const int64_t count = integers.numel();
    char text[24];
    for (int64_t i = 0; i < count; ++i) {
      const char* end = std::to_chars(text, text + sizeof(text), values[i]).ptr;
      out[i] = mask && values[i] == *mask ? 0 : bin(std::string_view(text, static_cast<size_t>(end - text)));
    }
    return result;
  }

  template <class Value>
  const Value* mask_of(const Column& in) const {
    if (!masks_) return nullptr;
    const Value* mask = std::get_if<Value>(&*options_.mask_value);
    if (mask == nullptr) {
      throw invalid_argument(kHashing, ": got ", words_for(in), ", but the mask value is a ",
                             std::holds_alternative<std::string>(*options_.mask_value) ? "string" : "number");
    }
    return mask;
  }

  HashingOptions options_;
  bool masks_ = false;
};

}  // namespace

std::shared_ptr<const Preprocessing> hashing(const HashingOptions& options) {
  return std::make_shared<Hashing>(options);
}

std::shared_ptr<const Preprocessing> hashing_from(StateReader& state) {
  HashingOptions options{.bins = state.number("bins")};
  if (state.has_text("mask_value")) {
    options.mask_value = state.text("mask_value");
  } else if (state.has("mask_value")) {
    options.mask_value = state.number("mask_value");
  }
  if (state.has("salt")) {
    const auto salt = state.numbers("salt");
    if (salt.size() != 2) throw invalid_argument(kHashing, ": a salt of ", salt.size(), " numbers, expected 2");
    options.salt = {static_cast<uint64_t>(salt[0]), static_cast<uint64_t>(salt[1])};
  }
  return hashing(options);
}

}  // namespace muster
