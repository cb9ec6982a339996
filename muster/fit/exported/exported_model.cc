#include "muster/fit/exported/exported_model.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "muster/base/status.h"
#include "muster/graph/aliases.h"
#include "muster/graph/checker.h"
#include "muster/graph/serialize.h"
#include "muster/io/json_words.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr int64_t kLargestBatch = int64_t{1} << 40;

std::string text_of_sizes(const TensorSpec& spec) {
  auto append = [](std::string* text, int64_t size) { *text += size == kBatchSize ? "batch" : std::to_string(size); };
  return str_cat(name_of(spec.dtype), "[", absl::StrJoin(spec.sizes, ", ", append), "]");
}

TensorSpec for_batch(TensorSpec spec, int64_t batch) {
  std::replace(spec.sizes.begin(), spec.sizes.end(), kBatchSize, batch);
  return spec;
}

// What would reach out of the program, or wait for somebody.
void refuse_ops(const Program& program) {
  static const std::set<std::string_view> kOutside{kNext.name, kRemote.name, kSend.name, kReceive.name,
                                                   kCollective.name};
  for (const Op& op : program.ops) {
    if (kOutside.contains(op.name)) {
      throw invalid_argument("op ", op.name, " needs other tasks, or a sequence of examples, which a model has not");
    }
  }
  for (const Program& body : program.bodies) refuse_ops(body);
}

void check_program(const ExportedModel& model, const SizedProgram& sized) {
  const Program& program = sized.program;
  if (sized.size < 1 || sized.size > kLargestBatch) throw invalid_argument("batches of ", sized.size);
  check(program);
  if (!program.parts.empty() || !program.task.empty() || program.devices != std::vector<std::string>{""}) {
    throw invalid_argument("it is placed on devices");
  }
  refuse_ops(program);
  const ModelSignature& signature = model.signature;
  if (program.arguments.size() != signature.inputs.size() || program.outputs.size() != signature.outputs.size()) {
    throw invalid_argument("it takes ", program.arguments.size(), " tensors and gives ", program.outputs.size(),
                           ", the model says ", signature.inputs.size(), " and ", signature.outputs.size());
  }
  const Aliases aliases(program);
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const TensorSpec expected = for_batch(signature.inputs[i].spec, sized.size);
    if (program.arguments[i].spec == expected && !program.arguments[i].any) continue;
    throw invalid_argument("input \"", signature.inputs[i].name, "\" is ", program.arguments[i].spec.to_string(),
                           ", the model says ", expected.to_string());
  }
  for (const VariableRef& variable : program.variables) {
    const auto weight = std::find_if(model.weights.begin(), model.weights.end(),
                                     [&](const ExportedWeight& each) { return each.name == variable.name; });
    if (weight == model.weights.end() || weight->spec != variable.spec) {
      throw invalid_argument("variable \"", variable.name, "\" (", variable.spec.to_string(), ") is no weight");
    }
    if (aliases.written(aliases.group(variable.value))) {
      throw invalid_argument("it writes to variable \"", variable.name,
                             "\", as layers do in training mode; a model that is served changes nothing: eval()");
    }
  }
}

json json_of(const std::vector<ModelTensor>& tensors) {
  json list = json::array();
  for (const ModelTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name}, {"dtype", name_of(tensor.spec.dtype)}, {"shape", tensor.spec.sizes}});
  }
  return list;
}

json json_of(const SizedProgram& sized) {
  return {{"batch", sized.size}, {"program", absl::Base64Escape(serialize(sized.program))}};
}

// Reads what json_of has written. Throws json::exception for what is not there or of another kind.
DType dtype_named(const std::string& name) {
  for (int number = 0; number <= std::numeric_limits<uint8_t>::max(); ++number) {
    const auto dtype = dtype_from_number(number);
    if (dtype && name_of(*dtype) == name) return *dtype;
  }
  throw data_loss("dtype \"", name, "\" is not known");
}

TensorSpec spec_from(const json& tensor, int64_t least) {
  TensorSpec spec{dtype_named(tensor.at("dtype").get<std::string>()), tensor.at("shape").get<std::vector<int64_t>>()};
  for (const int64_t size : spec.sizes) {
    if (size < least) throw data_loss("a size of ", size);
  }
  return spec;
}

std::vector<ModelTensor> tensors_from(const json& list) {
  std::vector<ModelTensor> tensors;
  for (const json& tensor : list) {
    tensors.push_back({tensor.at("name").get<std::string>(), spec_from(tensor, kBatchSize)});
  }
  return tensors;
}

SizedProgram sized_from(const json& program) {
  std::string bytes;
  if (!absl::Base64Unescape(program.at("program").get_ref<const std::string&>(), &bytes)) {
    throw data_loss("a program is not in base64");
  }
  return {program.at("batch").get<int64_t>(), parse_program(bytes)};
}

ExportedModel model_from(const json& text) {
  ExportedModel model;
  model.signature.name = text.at("name").get<std::string>();
  model.signature.inputs = tensors_from(text.at("inputs"));
  model.signature.outputs = tensors_from(text.at("outputs"));
  for (const json& weight : text.at("weights")) {
    model.weights.push_back(
        {weight.at("name").get<std::string>(), spec_from(weight, 0), weight.at("variable").get<std::string>(),
         weight.at("variable_shape").get<std::vector<int64_t>>(), weight.at("first_row").get<int64_t>()});
  }
  for (const json& program : text.at("sized")) model.sized.push_back(sized_from(program));
  if (const json& any = text.at("any"); !any.empty()) model.any = {sized_from(any.at(0)), sized_from(any.at(1))};
  model.signature.any_batch = model.any.has_value();
  for (const SizedProgram& sized : model.sized) model.signature.batch_sizes.push_back(sized.size);
  return model;
}

}  // namespace

std::string ModelTensor::to_string() const { return str_cat(name, ": ", text_of_sizes(spec)); }

std::string ModelSignature::to_string() const {
  std::string text = str_cat("model \"", name, "\"\n");
  for (const ModelTensor& input : inputs) str_append(text, "  takes ", input.to_string(), "\n");
  for (const ModelTensor& output : outputs) str_append(text, "  gives ", output.to_string(), "\n");
  str_append(text, "  batch sizes: ", any_batch ? "any" : absl::StrJoin(batch_sizes, ", "), "\n");
  return text;
}

Program ExportedModel::program_for(int64_t batch) const {
  for (const SizedProgram& each : sized) {
    if (each.size == batch) return each.program;
  }
  if (!any) {
    throw invalid_argument("model \"", signature.name, "\": a batch of ", batch, " examples, expected ",
                           absl::StrJoin(signature.batch_sizes, " or "),
                           ": it was exported for batches of such sizes alone");
  }
  std::optional<Program> program;
  if (batch >= 1 && batch <= kLargestBatch) program = resized(any->first, any->second, batch);
  if (!program) throw invalid_argument("model \"", signature.name, "\": there can be no batch of ", batch, " examples");
  return *std::move(program);
}

void check(const ExportedModel& model) {
  std::set<std::string> names;
  for (const ModelTensor& input : model.signature.inputs) {
    if (!names.insert(input.name).second) throw invalid_argument("there are two inputs \"", input.name, "\"");
  }
  names.clear();
  for (const ModelTensor& output : model.signature.outputs) {
    if (!names.insert(output.name).second) throw invalid_argument("there are two outputs \"", output.name, "\"");
  }
  std::vector<const SizedProgram*> programs;
  for (const SizedProgram& sized : model.sized) programs.push_back(&sized);
  if (model.any) {
    programs.push_back(&model.any->first);
    programs.push_back(&model.any->second);
  }
  if (programs.empty()) throw invalid_argument("it has no program");
  for (const SizedProgram* sized : programs) {
    try {
      check_program(model, *sized);
    } catch (const Error& error) {
      throw Error(
          Status(error.code(), str_cat("the program for batches of ", sized->size, ": ", error.status().message())));
    }
  }
  if (model.any && !resized(model.any->first, model.any->second, model.any->first.size + model.any->second.size)) {
    throw invalid_argument("the programs for batches of ", model.any->first.size, " and ", model.any->second.size,
                           " differ by more than sizes");
  }
}

std::string to_text(const ExportedModel& model) {
  json text{{"version", kExportedModelVersion},
            {"name", model.signature.name},
            {"inputs", json_of(model.signature.inputs)},
            {"outputs", json_of(model.signature.outputs)},
            {"weights", json::array()},
            {"sized", json::array()},
            {"any", json::array()}};
  for (const ExportedWeight& weight : model.weights) {
    text["weights"].push_back({{"name", weight.name},
                               {"dtype", name_of(weight.spec.dtype)},
                               {"shape", weight.spec.sizes},
                               {"variable", weight.variable},
                               {"variable_shape", weight.variable_sizes},
                               {"first_row", weight.first_row}});
  }
  for (const SizedProgram& sized : model.sized) text["sized"].push_back(json_of(sized));
  if (model.any) text["any"] = {json_of(model.any->first), json_of(model.any->second)};
  return text.dump();
}

ExportedModel exported_model_from_text(std::string_view text, const std::string& where) {
  ExportedModel model;
  try {
    const auto shallow = [&](int depth, json::parse_event_t, json&) {
      if (depth > 8) throw data_loss("it has too many levels");
      return true;
    };
    const json parsed = json::parse(text, shallow);
    const int64_t version = parsed.at("version").get<int64_t>();
    if (version != kExportedModelVersion) {
      throw failed_precondition("it is of version ", version, ", this Muster reads version ", kExportedModelVersion,
                                "; export it again");
    }
    model = model_from(parsed);
    check(model);
  } catch (const json::exception& error) {
    throw data_loss(where, ": its exported model is damaged: ", json_words(error, text.size()));
  } catch (const Error& error) {
    const StatusCode code = error.code() == StatusCode::kInvalidArgument ? StatusCode::kDataLoss : error.code();
    throw Error(Status(code, str_cat(where, ": its exported model: ", error.status().message())));
  }
  return model;
}

}  // namespace muster
