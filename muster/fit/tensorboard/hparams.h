// What a training was started with, for TensorBoard's table of hyperparameters.
#pragma once

#include <concepts>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace muster {

// A number, a truth value or a text.
class HparamValue {
 public:
  template <class Number>
    requires(std::integral<Number> || std::floating_point<Number>) && (!std::same_as<Number, bool>)
  HparamValue(Number number) : value_(static_cast<double>(number)) {}  // NOLINT: {"learning_rate", 0.1}
  HparamValue(bool truth) : value_(truth) {}                           // NOLINT
  HparamValue(std::string text) : value_(std::move(text)) {}           // NOLINT
  HparamValue(const char* text) : value_(std::string(text)) {}         // NOLINT

  const std::variant<double, bool, std::string>& value() const { return value_; }
  bool operator==(const HparamValue&) const = default;

 private:
  std::variant<double, bool, std::string> value_;
};

// {{"learning_rate", 0.1}, {"optimizer", "adam"}, {"augment", true}}
using Hparams = std::map<std::string, HparamValue>;

// A column of the table: a hyperparameter and the values that it may have, at least one, which tell its type;
struct HparamColumn {
  std::string name;
  std::vector<HparamValue> choices;
};
// and the last value of a scalar, in the directory of a session or in one below it, such as "validation".
struct HparamMetric {
  std::string tag;
  std::string group{};
};

}  // namespace muster
