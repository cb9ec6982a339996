#include "muster/data/preprocessing/layer_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/layer_values.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr std::pair<std::string_view, MakeFromState*> kLayersByKind[] = {
    {"hashing", hashing_from},
    {"string_lookup", string_lookup_from},
    {"integer_lookup", integer_lookup_from},
    {"category_encoding", category_encoding_from},
    {"discretization", discretization_from},
    {"normalization", normalization_from},
    {"text_vectorization", text_vectorization_from},
};

// By their numbers.
const std::vector<std::string_view>& output_mode_names() {
  static const std::vector<std::string_view> names{"int", "one_hot", "multi_hot", "count"};
  return names;
}

}  // namespace

std::shared_ptr<const Preprocessing> preprocessing_from(const Preprocessing::State& state) {
  for (const auto& [kind, make] : kLayersByKind) {
    if (kind != state.kind) continue;
    StateReader reader(state);
    auto layer = make(reader);
    reader.finish();
    return layer;
  }
  throw invalid_argument("state of a layer: kind \"", state.kind, "\" is not known");
}

Column number_column(int64_t number) {
  PlainTensors plain;
  at::Tensor tensor = at::empty({}, at::TensorOptions(at::kLong));
  *tensor.mutable_data_ptr<int64_t>() = number;
  return tensor;
}

Column numbers_column(const std::vector<int64_t>& numbers) {
  PlainTensors plain;
  at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions(at::kLong));
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

Column text_column(std::string_view text) { return Strings(std::string(text)); }

std::string_view name_of(OutputMode mode) {
  const auto number = static_cast<size_t>(mode);
  const auto& names = output_mode_names();
  if (number >= names.size()) throw invalid_argument("output_mode ", number, " is none of Keras'");
  return names[number];
}

void check_option(std::string_view layer, std::string_view option, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return;
  throw invalid_argument(layer, ": ", option, " ", value, ": expected at least ", lowest,
                         highest == std::numeric_limits<int64_t>::max() ? "" : str_cat(" and at most ", highest));
}

bool StateReader::has_text(std::string_view name) const {
  const auto value = state_.values.find(std::string(name));
  return value != state_.values.end() && value->second.holds_strings();
}

bool StateReader::flag(std::string_view name) {
  const int64_t value = number(name);
  if (value != 0 && value != 1) {
    throw invalid_argument("state of layer \"", state_.kind, "\": \"", name, "\" is ", value, ", expected 0 or 1");
  }
  return value == 1;
}

int64_t StateReader::number(std::string_view name) {
  return *tensor(name, at::kLong, 0, "one int64").const_data_ptr<int64_t>();
}

std::vector<int64_t> StateReader::numbers(std::string_view name) {
  const at::Tensor values = tensor(name, at::kLong, 1, "a row of int64");
  const int64_t* begin = values.const_data_ptr<int64_t>();
  return std::vector<int64_t>(begin, begin + values.numel());
}

at::Tensor StateReader::floats(std::string_view name) { return tensor(name, at::kFloat, std::nullopt, "float32"); }

std::string StateReader::text(std::string_view name) {
  const Column& value = read(name);
  if (!value.holds_strings() || !value.sizes().empty()) throw unexpected(name, value, "one string");
  return std::string(value.strings()[0]);
}

const Strings& StateReader::texts(std::string_view name) {
  const Column& value = read(name);
  if (!value.holds_strings() || value.sizes().size() != 1) throw unexpected(name, value, "a row of strings");
  return value.strings();
}

size_t StateReader::choice(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string chosen = text(name);
  const auto found = std::find(names.begin(), names.end(), chosen);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  std::string expected;
  for (const std::string_view each : names) str_append(expected, expected.empty() ? "\"" : ", \"", each, "\"");
  throw invalid_argument("state of layer \"", state_.kind, "\": \"", name, "\" is \"", chosen, "\", expected one of ",
                         expected);
}

OutputMode StateReader::output_mode() { return static_cast<OutputMode>(choice("output_mode", output_mode_names())); }

void StateReader::finish() const {
  if (read_ == state_.values.size()) return;
  throw invalid_argument("state of layer \"", state_.kind, "\": has ", state_.values.size(),
                         " values, of which the layer knows ", read_);
}

const Column& StateReader::read(std::string_view name) {
  const auto value = state_.values.find(std::string(name));
  if (value == state_.values.end()) {
    throw invalid_argument("state of layer \"", state_.kind, "\": there is no \"", name, "\"");
  }
  ++read_;
  return value->second;
}

Error StateReader::unexpected(std::string_view name, const Column& value, std::string_view expected) const {
  return invalid_argument("state of layer \"", state_.kind, "\": \"", name, "\" is ", words_for(value), ", expected ",
                          expected);
}

at::Tensor StateReader::tensor(std::string_view name, at::ScalarType type, std::optional<int64_t> dimensions,
                               std::string_view expected) {
  const Column& value = read(name);
  if (!has_elements_here(value) || value.tensor().scalar_type() != type ||
      (dimensions && value.tensor().dim() != *dimensions)) {
    throw unexpected(name, value, expected);
  }
  PlainTensors plain;
  return value.tensor().contiguous();
}

}  // namespace muster
