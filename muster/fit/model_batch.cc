#include "muster/fit/model_batch.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Columns of them are of all outputs, or of one: "sample_weight_box".
constexpr std::string_view kWeights = "sample_weight", kMask = "sample_mask";

// The output whose column it is, if it is one of `kind`: empty for all.
std::optional<std::string> output_of(const std::string& name, std::string_view kind) {
  if (name == kind) return "";
  if (!name.starts_with(str_cat(kind, "_"))) return std::nullopt;
  return name.substr(kind.size() + 1);
}

std::optional<std::string> output_of(const std::string& name) {
  std::optional<std::string> output = output_of(name, kWeights);
  return output ? output : output_of(name, kMask);
}

// That of the output, or else that of all; undefined if there is none.
at::Tensor column_for(const std::string& output, std::string_view kind, const Features& columns) {
  const std::string own = str_cat(kind, "_", output), of_all(kind);
  if (columns.contains(own)) return columns[own];
  return columns.contains(of_all) ? columns[of_all] : at::Tensor();
}

// Of an element without names: targets, and weights for all outputs or for each.
std::vector<Expected> in_order(const std::vector<at::Tensor>& given, const Criteria& criteria, size_t inputs) {
  const size_t count = criteria.all().size();
  if (given.size() != count && given.size() != count + 1 && given.size() != 2 * count) {
    if (count == 1) {
      throw invalid_argument(
          "a model is trained with elements (inputs, target) or (inputs, target, weights), but one has ",
          given.size() + inputs, " tensors without names, of which the first ",
          inputs == 1 ? "is" : str_cat(inputs, " are"),
          " what forward() takes; with names, as files and Dataset::named give them, label() says which is the "
          "target");
    }
    throw invalid_argument("a model with the outputs ", criteria.names(), " is trained with elements (inputs, ", count,
                           " targets), and perhaps weights after them, 1 or ", count, ", but one has ",
                           given.size() + inputs, " tensors without names");
  }
  std::vector<Expected> expected(count);
  for (size_t i = 0; i < count; ++i) {
    expected[i].target = given[i];
    if (given.size() > count) expected[i].weights = given[given.size() == 2 * count ? count + i : count];
  }
  return expected;
}

}  // namespace

ModelBatch::ModelBatch(const Iterator& it, const std::vector<at::Tensor>& tensors, bool labelled,
                       const InputsTaken& taken, bool inputs_alone) {
  if (it.names.empty()) {
    if (taken.most > taken.count && tensors.size() > taken.count + (labelled ? 1 : 0)) {
      throw invalid_argument("an element has ", tensors.size(), " tensors without names, and forward() takes ",
                             taken.count, " to ", taken.most,
                             ", so nobody knows which of them are inputs; give them names, by Dataset::named and "
                             "label(), or as Features");
    }
    if (labelled && !taken.by_name && tensors.size() <= taken.count) {  // else forward() would take the target
      throw invalid_argument("a model is trained with its inputs and a target, but an element has ", tensors.size(),
                             tensors.size() == 1 ? " tensor" : " tensors", " without names, and forward() takes ",
                             taken.count, ": none is left for the target; expected fit({input, …, target})");
    }
    const auto end = tensors.begin() + static_cast<ptrdiff_t>(std::min(taken.count, tensors.size()));
    inputs = Features(std::vector<std::string>(static_cast<size_t>(end - tensors.begin())), {tensors.begin(), end});
    targets = Features({}, {end, tensors.end()});
    return;
  }
  // The last column that has no weights is the target, unless label() has named others. Of data to predict it is, too,
  // if it is one more than forward() takes: what a model was trained with can be predicted.
  const size_t count = tensors.size();
  const auto plain =
      static_cast<size_t>(std::ranges::count_if(it.names, [](const std::string& name) { return !output_of(name); }));
  const bool may_be_either = !labelled && !taken.by_name && it.labels < 1 && plain > taken.count && plain <= taken.most;
  const bool one_more =
      !labelled && !taken.by_name && !may_be_either && (plain == taken.count + 1 || plain == taken.most + 1);
  if (may_be_either && !inputs_alone) {
    throw invalid_argument("the columns to predict are ", absl::StrJoin(it.names, ", "), ", but forward() takes ",
                           taken.count, " to ", taken.most,
                           " tensors, so the last one may be an input or the target; "
                           "label() the target, or select() the inputs that have no default");
  }
  const auto labels = static_cast<size_t>(std::max<int64_t>(it.labels, 0));
  const bool is_last = labels == 0 && (labelled || one_more);
  target_is_last_ = is_last;
  size_t target = count;
  for (size_t i = 0; is_last && i < count; ++i) {
    if (!output_of(it.names[i])) target = i;
  }
  if (is_last ? plain < 2 : count <= labels) {
    throw invalid_argument("a model is trained with inputs and a target, but the columns of the dataset are only ",
                           absl::StrJoin(it.names, ", "));
  }
  std::vector<std::string> names[3];
  std::vector<at::Tensor> columns[3];
  for (size_t i = 0; i < count; ++i) {
    const size_t kind = i + labels >= count || i == target ? 1 : output_of(it.names[i]) ? 2 : 0;
    names[kind].push_back(it.names[i]);
    columns[kind].push_back(tensors[i]);
  }
  inputs = Features(std::move(names[0]), std::move(columns[0]));
  targets = Features(std::move(names[1]), std::move(columns[1]));
  weights = Features(std::move(names[2]), std::move(columns[2]));
}

std::vector<Expected> ModelBatch::expected(const Criteria& criteria) const {
  if (targets.names().empty()) return in_order(targets.tensors(), criteria, inputs.tensors().size());
  const std::vector<std::string>& outputs = criteria.outputs();
  auto is_output = [&](const std::string& name) { return std::ranges::find(outputs, name) != outputs.end(); };
  const auto known = static_cast<size_t>(std::ranges::count_if(targets.names(), is_output));
  const size_t count = criteria.all().size();
  if (known == 0 && targets.names().size() != count) {
    throw invalid_argument("the data has ", targets.names().size(), " targets, ", absl::StrJoin(targets.names(), ", "),
                           ", but the model is trained for ", count, " outputs, ", criteria.names(),
                           "; Dataset::labels says which columns are targets");
  }
  if (known != 0 && known != targets.names().size()) {
    const auto other = std::ranges::find_if_not(targets.names(), is_output);
    throw invalid_argument("target \"", *other, "\" is of no output of the model, which are ",
                           absl::StrJoin(outputs, ", "));
  }
  for (const std::string& name : weights.names()) {
    const std::string output = *output_of(name);
    if (output.empty() || is_output(output)) continue;
    throw invalid_argument("column \"", name, "\" would be weights of an output \"", output,
                           "\", but those of the model are ", absl::StrJoin(outputs, ", "));
  }
  std::vector<Expected> expected(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string& output = criteria.all()[i].output;
    if (known != 0 && !targets.contains(output)) {
      throw invalid_argument("output \"", output, "\" of the model has no target; the targets are ",
                             absl::StrJoin(targets.names(), ", "));
    }
    expected[i].target = known != 0 ? targets[output] : targets.tensors()[i];
    expected[i].weights = column_for(output, kWeights, weights);
    expected[i].mask = column_for(output, kMask, weights);
  }
  return expected;
}

std::string ModelBatch::why_this_target() const {
  if (!target_is_last_ || targets.names().empty()) return {};
  return str_cat("; the last column \"", targets.names()[0],
                 "\" was taken as the target, since none is named: label(\"…\") of the dataset names another");
}

std::string ModelBatch::described() const {
  std::string text;
  bool single = false;
  auto add = [&](const char* what, const Features& tensors) {
    for (size_t i = 0; i < tensors.tensors().size(); ++i) {
      const std::string name = i < tensors.names().size() ? tensors.names()[i] : "";
      str_append(text, text.empty() ? "" : ", ", i == 0 ? str_cat(what, " ") : "",
                 name.empty() ? "" : str_cat("\"", name, "\" "), spec_of(tensors.tensors()[i]).to_string());
    }
  };
  add("inputs", inputs);
  add("target", targets);
  for (const at::Tensor& target : targets.tensors()) single = single || target.dim() == 0;
  if (single) str_append(text, " (single examples, expected batches: add batch(n) to the dataset)");
  return text;
}

}  // namespace muster
