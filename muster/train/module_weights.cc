#include "muster/train/module_weights.h"

#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "muster/base/status.h"
#include "muster/graph/describe.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/variable.h"
#include "muster/train/weights_file.h"

namespace muster::weights_internal {
namespace {

std::string quoted_name(const std::string& name) { return str_cat("\"", name, "\""); }

// What a tensor of the file is called in the module.
std::optional<std::string> name_in_module(const std::string& name, const LoadWeightsOptions& options) {
  std::string own = name;
  for (const auto& [from, to] : options.prefixes) {
    if (!name.starts_with(from)) continue;
    own = to + name.substr(from.size());
    break;
  }
  return options.rename ? options.rename(own) : own;
}

// From the names of the module to those of the file.
std::map<std::string, std::string> names_of(const SafetensorsFile& file, const LoadWeightsOptions& options) {
  std::map<std::string, std::string> names;
  for (const std::string& name : file.names()) {
    const std::optional<std::string> own = name_in_module(name, options);
    if (!own) continue;
    const auto [other, is_new] = names.emplace(*own, name);
    if (!is_new) {
      throw invalid_argument("file \"", file.path(), "\": \"", other->second, "\" and \"", name, "\" are both \"", *own,
                             "\" of the module");
    }
  }
  return names;
}

bool is_real_float(at::ScalarType type) { return at::isFloatingType(type); }

// A type of which libtorch has little more than the memory: 8-bit floats, and unsigned integers of more than 8 bits.
bool is_for_storage(at::ScalarType type) { return !dtype_from_number(static_cast<int64_t>(type)); }

// What `whole` has in 64 bits without a sign, of which some are `large`, 2^63 or more: in a type with room for them, if
// `type` is one.
std::optional<at::Tensor> with_large_ones(const at::Tensor& whole, const at::Tensor& large, at::ScalarType type) {
  if (at::isIntegralType(type, /*includeBool=*/true)) return std::nullopt;
  // Half of each, whose last bit is set if one was cut off: it is rounded as the whole would be.
  const at::Tensor half =
      whole.bitwise_right_shift(1).bitwise_and(std::numeric_limits<int64_t>::max()).bitwise_or(whole.bitwise_and(1));
  at::Tensor all = at::where(large, half.to(type).mul(2), whole.to(type));
  if (is_real_float(type) && !all.isfinite().all().item<bool>()) return std::nullopt;
  return all;
}

// The same numbers in a type that has all ops, or in `type`, if one of them has room for all.
std::optional<at::Tensor> as_ordinary(const at::Tensor& value, at::ScalarType type) {
  if (!is_for_storage(value.scalar_type())) return value;
  if (is_real_float(value.scalar_type())) return value.to(at::kFloat);
  if (value.scalar_type() != at::ScalarType::UInt64) return value.to(at::kLong);
  at::Tensor whole = value.view(at::kLong);
  const at::Tensor large = whole.lt(0);  // the first bit is set
  if (large.any().item<bool>()) return with_large_ones(whole, large, type);
  return whole;
}

// Why values of one type cannot become another; nothing: they can, if they have room.
std::string refusal_of(at::ScalarType from, at::ScalarType to, bool cast) {
  if (from == to) return {};
  if (!cast) return "LoadWeightsOptions::cast is off";
  if (is_for_storage(to)) return "values of other types are not converted to this one";
  if (at::isComplexType(from) && !at::isComplexType(to)) return "complex numbers cannot become real ones";
  if (is_real_float(from) && at::isIntegralType(to, /*includeBool=*/true)) return "fractions cannot become integers";
  if (to == at::kBool) return "numbers cannot become truth values";
  return {};
}

// Whether all values are still there after the conversion, up to rounding.
bool has_room(const at::Tensor& before, const at::Tensor& after) {
  if (at::isIntegralType(after.scalar_type(), true)) return after.to(before.scalar_type()).equal(before);
  if (at::isComplexType(before.scalar_type()) || !is_real_float(after.scalar_type())) return true;
  return after.isfinite().equal(before.isfinite());
}

// The variable that a tensor of a module stands for, or that it only shows, as nn::Embedding does: then it has no
// values of its own.
struct StandsFor {
  std::shared_ptr<Variable::State> state{};
  bool only_shows = false;
};
StandsFor variable_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return {};
  if (auto state = Variable::State::find(tensor)) return {std::move(state)};
  auto state = Variable::State::find_shown(tensor);
  const bool shows = state != nullptr;
  return {std::move(state), shows};
}

struct Target {
  at::Tensor tensor;   // of the module
  StandsFor variable;  // if it does
  std::string name;    // its last one that the file has; else its first
  std::optional<std::string> in_file{};
};

// Tensors that the module has twice are one.
std::vector<Target> targets_of(const std::vector<NamedTensor>& tensors,
                               const std::map<std::string, std::string>& names) {
  std::vector<Target> targets;
  for (const auto& [name, tensor] : tensors) {
    auto target =
        std::find_if(targets.begin(), targets.end(), [&](const Target& each) { return each.tensor.is_same(tensor); });
    if (target == targets.end()) {
      target = targets.insert(targets.end(), {tensor, variable_of(tensor), name});
    }
    if (const auto found = names.find(name); found != names.end()) {
      target->name = name;
      target->in_file = found->second;
    }
  }
  return targets;
}

}  // namespace

LoadWeightsReport load(const std::vector<NamedTensor>& tensors, const std::string& path,
                       const LoadWeightsOptions& options) {
  const SafetensorsFile file(path);
  const std::map<std::string, std::string> names = names_of(file, options);
  const std::vector<Target> targets = targets_of(tensors, names);

  LoadWeightsReport report;
  std::vector<std::string> missing, unexpected, wrong;
  std::set<std::string> known;
  for (const NamedTensor& each : tensors) known.insert(each.name);
  for (const auto& [own, name] : names) {
    if (known.contains(own)) continue;
    report.unexpected.push_back(name);
    unexpected.push_back(own == name ? quoted_name(name) : str_cat("\"", name, "\" (as \"", own, "\")"));
  }
  std::vector<at::Tensor> values;  // all of them before the first is given; undefined for those that get none
  for (const Target& target : targets) {
    if (!target.in_file) {
      report.missing.push_back(target.name);
      missing.push_back(quoted_name(target.name));
      values.emplace_back();
      continue;
    }
    report.loaded.push_back(target.name);
    const WeightSpec there = spec_of_weight(file, *target.in_file), here = spec_of_weight(target.tensor);
    const std::string about = str_cat("\"", target.name, "\" is ", there.to_string(), ", expected ", here.to_string());
    if (there.sizes != here.sizes) {
      wrong.push_back(about);
      continue;
    }
    if (const auto refusal = refusal_of(there.type, here.type, options.cast); !refusal.empty()) {
      wrong.push_back(str_cat(about, ": ", refusal));
      continue;
    }
    const at::Tensor value = read_weight(file, *target.in_file);
    PlainTensors plain;
    const bool is_same = there.type == here.type;
    const std::optional<at::Tensor> given = is_same ? value : as_ordinary(value, here.type);
    values.push_back(given ? given->to(here.type) : at::Tensor());
    if (!given || (!is_same && !has_room(*given, values.back()))) {
      wrong.push_back(str_cat(about, ": it has values that are too large for ", name_of(dtype_of(here.type))));
    }
  }
  const bool complete = !options.strict || (missing.empty() && unexpected.empty());
  if (!complete || !wrong.empty()) {
    std::string text;
    if (options.strict && !missing.empty()) str_append(text, "; it has no ", first_few(missing));
    if (options.strict && !unexpected.empty()) str_append(text, "; the module has no ", first_few(unexpected));
    if (!wrong.empty()) str_append(text, "; ", first_few(wrong));
    if (!complete)
      str_append(
          text,
          "; nothing is loaded (LoadWeightsOptions::strict = false takes what fits, prefixes and rename change names)");
    throw invalid_argument("file \"", path, "\" does not fit the module", text);
  }

  for (size_t i = 0; i < targets.size(); ++i) {
    if (!values[i].defined()) continue;
    at::Tensor tensor = targets[i].tensor;
    const auto& [state, only_shows] = targets[i].variable;
    if (state) Variable(state).assign(values[i]);
    if (only_shows) continue;
    PlainTensors plain;
    tensor.copy_(values[i]);
    if (state) state->note_adopted_version();
  }
  return report;
}

void save(const std::vector<NamedTensor>& tensors, const std::string& file, const SaveWeightsOptions& options) {
  if (options.dtype && !is_real_float(*options.dtype)) {
    throw invalid_argument("save_safetensors: dtype ", name_of(dtype_of(*options.dtype)),
                           ", expected a floating-point type");
  }
  NamedTensors values;
  std::vector<std::string> wrong;
  for (const auto& [name, tensor] : tensors) {
    const auto state = variable_of(tensor).state;
    at::Tensor value = state ? Variable(state).value() : tensor;
    PlainTensors plain;
    value = value.detach();
    if (options.dtype && is_real_float(value.scalar_type()) && value.scalar_type() != *options.dtype) {
      at::Tensor converted = value.to(*options.dtype);
      if (!has_room(*as_ordinary(value, at::kFloat), *as_ordinary(converted, at::kFloat))) {
        wrong.push_back(str_cat("\"", name, "\" is ", spec_of_weight(value).to_string(),
                                ": it has values that are too large for ", spec_of_weight(converted).to_string()));
      }
      value = std::move(converted);
    }
    values.emplace_back(name, std::move(value));
  }
  if (!wrong.empty()) {
    throw invalid_argument("file \"", file, "\": ", first_few(wrong),
                           "; nothing is written (SaveWeightsOptions::dtype is a type that has room for all)");
  }
  std::map<std::string, std::string> metadata = options.metadata;
  metadata.emplace("format", "pt");  // without it, some of those that read such files for PyTorch do not
  write_weights(file, values, metadata);
}

}  // namespace muster::weights_internal
