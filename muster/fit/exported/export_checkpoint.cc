#include "muster/fit/exported/export_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "muster/base/status.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/graph/describe.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/runtime/variables/variable_files.h"
#include "muster/train/weights_file.h"

namespace muster {
namespace {

constexpr std::string_view kLag = "/average_less_value";  // the slot of an optimizer

// Where weights come from.
struct WeightSource {
  std::string where;   // in words
  bool has_variables;  // and parts of them are weights; else it has weights
  // What it has of a weight, or of the variable of the weight.
  std::function<std::optional<TensorSpec>(const ExportedWeight&)> spec;
  std::function<at::Tensor(const ExportedWeight&)> read;
  std::map<std::string, std::string> metadata{};
};

WeightSource weights_of_file(const std::string& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  auto spec = [file](const ExportedWeight& weight) -> std::optional<TensorSpec> {
    if (!file->has(weight.name)) return std::nullopt;
    return file->spec(weight.name);
  };
  return {str_cat("file \"", path, "\""), /*has_variables=*/false, spec,
          [file](const ExportedWeight& weight) { return read_weight(*file, weight.name); }, file->metadata()};
}

// What an optimizer keeps beside a variable, and what is added to that for its average; empty if there is none.
std::string lag_of(const std::string& variable, const std::set<std::string>& variables) {
  const std::string begin = variable + "/";
  for (auto name = variables.lower_bound(begin); name != variables.end() && name->starts_with(begin); ++name) {
    const std::string_view slot = std::string_view(*name).substr(begin.size());  // "sgd/average_less_value"
    if (slot.ends_with(kLag) && slot.find('/') == slot.size() - kLag.size()) return *name;
  }
  return {};
}

WeightSource weights_of_checkpoint(const std::string& path, bool averages) {
  std::string newest = path;
  if (!std::filesystem::exists(path + "/" + kIndexFile)) {
    const std::optional<Checkpoint> latest = CheckpointDirectory(path).latest();
    if (!latest) throw not_found("\"", path, "\" is no checkpoint, and none is in it");
    newest = latest->path;
  }
  const auto reader = std::make_shared<const CheckpointReader>(newest);
  auto spec = [reader](const ExportedWeight& weight) -> std::optional<TensorSpec> {
    if (reader->has(weight.variable)) return reader->spec(weight.variable);
    if (!has_variable(*reader, weight.variable)) return std::nullopt;
    return TensorSpec{weight.spec.dtype, weight.variable_sizes};  // rows on demand, which say so when they are read
  };
  const std::set<std::string> variables = variables_in(reader->index());
  if (averages && std::ranges::none_of(variables, [](const std::string& name) { return name.ends_with(kLag); })) {
    throw invalid_argument("checkpoint \"", newest,
                           "\" has no averages; UpdateOptions::average makes an optimizer keep some");
  }
  auto read = [reader, newest, variables, averages](const ExportedWeight& weight) {
    const auto read_as = [&](const std::string& variable, const TensorSpec& spec) {
      return value_in(*reader, newest,
                      {.name = weight.name,
                       .spec = spec,
                       .whole = variable,
                       .whole_sizes = weight.variable_sizes,
                       .first_row = weight.first_row});
    };
    const at::Tensor value = read_as(weight.variable, weight.spec);
    const std::string lag = averages ? lag_of(weight.variable, variables) : "";
    if (lag.empty()) return value;
    TensorSpec exact = weight.spec;
    if (exact.dtype != DType::kDouble) exact.dtype = DType::kFloat;
    return read_as(lag, exact).add(value).to(value.scalar_type());
  };
  return {str_cat("checkpoint \"", newest, "\""), /*has_variables=*/true, spec, read, reader->index().metadata};
}

WeightSource open_weights(const std::string& path, bool averages) {
  if (!std::filesystem::exists(path)) throw not_found("\"", path, "\": there is no such checkpoint or file");
  if (std::filesystem::is_directory(path)) return weights_of_checkpoint(path, averages);
  if (averages) throw invalid_argument("file \"", path, "\" has no averages beside its weights; expected a checkpoint");
  return weights_of_file(path);
}

}  // namespace

void export_checkpoint(const ExportCheckpointOptions& options) {
  const WeightSource source = open_weights(options.weights, options.averages);
  std::optional<SafetensorsFile> file;
  if (!options.model.empty()) file.emplace(options.model);
  const std::map<std::string, std::string>& metadata = file ? file->metadata() : source.metadata;
  const std::string where = file ? str_cat("file \"", options.model, "\"") : source.where;
  const auto text = metadata.find(kExportedModelKey);
  if (text == metadata.end()) {
    throw not_found(where, " has no program: ",
                    file ? "expected what export_model writes"
                         : "name an exported model that has it, or save checkpoints with "
                           "ModelCheckpointOptions::example_inputs");
  }
  const ExportedModel model = exported_model_from_text(text->second, where);

  NamedTensors weights;
  std::vector<std::string> missing, wrong;
  for (const ExportedWeight& weight : model.weights) {
    if (weight.variable.empty() && file && file->has(weight.name)) {  // a constant of the program
      weights.emplace_back(weight.name, read_weight(*file, weight.name));
      continue;
    }
    const std::optional<TensorSpec> there = source.spec(weight);
    const TensorSpec expected =
        source.has_variables ? TensorSpec{weight.spec.dtype, weight.variable_sizes} : weight.spec;
    if (!there) {
      missing.push_back(str_cat("\"", source.has_variables ? weight.variable : weight.name, "\""));
    } else if (*there != expected) {
      wrong.push_back(str_cat("\"", weight.name, "\" is ", there->to_string(), ", expected ", expected.to_string()));
    } else {
      weights.emplace_back(weight.name, source.read(weight));
    }
  }
  if (!missing.empty() || !wrong.empty()) {
    throw invalid_argument(source.where, " does not fit the program of ", where,
                           missing.empty() ? "" : str_cat("; it has no ", first_few(missing)),
                           wrong.empty() ? "" : str_cat("; ", first_few(wrong)));
  }
  std::map<std::string, std::string> written = file ? file->metadata() : std::map<std::string, std::string>{};
  written.emplace("format", "pt");
  written[kExportedModelKey] = text->second;
  write_weights(options.out, weights, written);
}

}  // namespace muster
