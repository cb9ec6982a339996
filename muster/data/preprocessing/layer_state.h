// How the layers write and read their states. Not for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/status.h"
#include "muster/data/preprocessing/preprocessing_layers.h"

namespace muster {

// The most categories, tokens of a text and the like that a state may ask for: Keras counts them as int32.
constexpr int64_t kMostCategories = 0x7fffffff;

Column number_column(int64_t number);
Column numbers_column(const std::vector<int64_t>& numbers);
Column text_column(std::string_view text);

std::string_view name_of(OutputMode mode);
// Throws Error{kInvalidArgument} unless lowest <= value <= highest.
void check_option(std::string_view layer, std::string_view option, int64_t value, int64_t lowest, int64_t highest);

// Reads the values of a state that may be anything. Each is read once; finish() refuses a state that has others.
class StateReader {
 public:
  // REQUIRES: `state` outlives the reader.
  explicit StateReader(const Preprocessing::State& state) : state_(state) {}

  bool has(std::string_view name) const { return state_.values.contains(std::string(name)); }
  bool has_text(std::string_view name) const;
  bool flag(std::string_view name);
  int64_t number(std::string_view name);
  std::vector<int64_t> numbers(std::string_view name);
  at::Tensor floats(std::string_view name);  // float32, of any shape, contiguous, on the CPU
  std::string text(std::string_view name);
  const Strings& texts(std::string_view name);
  // The number of the one of `names` that the text is.
  size_t choice(std::string_view name, const std::vector<std::string_view>& names);
  OutputMode output_mode();
  void finish() const;

 private:
  const Column& read(std::string_view name);
  Error unexpected(std::string_view name, const Column& value, std::string_view expected) const;
  at::Tensor tensor(std::string_view name, at::ScalarType type, std::optional<int64_t> dimensions,
                    std::string_view expected);

  const Preprocessing::State& state_;
  size_t read_ = 0;
};

using MakeFromState = std::shared_ptr<const Preprocessing>(StateReader& state);
MakeFromState hashing_from, string_lookup_from, integer_lookup_from, category_encoding_from, discretization_from,
    normalization_from, text_vectorization_from;

}  // namespace muster
