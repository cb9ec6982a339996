#include "muster/fit/exported/export_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/fit/model.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/train/weights_file.h"

namespace muster {
namespace {

using export_internal::Exported;

constexpr int64_t kLargeConstant = 1'024;  // bytes, from which on it is a tensor of the file

// A variable, or all parts of one.
using Places = std::vector<std::shared_ptr<Variable::State>>;

struct TracedForward {
  SizedProgram sized{};
  std::vector<Places> variables{};  // as in the program
  std::vector<TensorSpec> outputs{};
  std::vector<std::string> names{};  // of the outputs
};

// Wherever a trainer has put things, the model is on one device.
void put_on_one_device(Program& program) {
  program.devices = {""};
  for (Instruction& instruction : program.instructions) instruction.device = 0;
  for (ProgramArgument& argument : program.arguments) argument.device = 0;
  for (VariableRef& variable : program.variables) variable.device = 0;
  for (Program& body : program.bodies) put_on_one_device(body);
}

// The parts of the variable that has this one, in their order, of all that are given; itself if that is not all of it.
Places all_of(const std::shared_ptr<Variable::State>& one, const Places& given) {
  const auto& of = one->part_of;
  if (!of || of->alike) return {one};
  Places parts;
  for (const auto& each : given) {
    if (each->part_of && each->part_of->name == of->name) parts.push_back(each);
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a->part_of->first_row < b->part_of->first_row; });
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  int64_t rows = 0;
  for (const auto& part : parts) {
    if (part->part_of->first_row != rows) return {one};
    rows += part->spec.sizes[0];
  }
  return rows == of->sizes[0] ? parts : Places{one};
}

at::Tensor value_of(const Places& places) {
  if (places.size() == 1) return Variable(places[0]).value();
  PlainTensors plain;
  at::Tensor whole = at::empty(places[0]->part_of->sizes, at::TensorOptions(scalar_type_of(places[0]->spec.dtype)));
  for (const auto& part : places) {
    whole.narrow(0, part->part_of->first_row, part->spec.sizes[0]).copy_(Variable(part).value());
  }
  return whole;
}

// What is kept in parts is one variable of the program, which looks at the rows of it that a part has. `others`: parts
// that the program may not use.
std::vector<Places> join_parts(Program& program, const Places& variables, const Places& others) {
  constexpr const char* kSlice = "aten::slice.Tensor";
  Places given = variables;
  given.insert(given.end(), others.begin(), others.end());
  std::vector<Places> joined;
  std::vector<VariableRef> refs;
  std::vector<Instruction> views;
  for (size_t i = 0; i < variables.size(); ++i) {
    Places places = all_of(variables[i], given);
    VariableRef& part = program.variables[i];
    if (places.size() == 1) {
      joined.push_back(std::move(places));
      refs.push_back(std::move(part));
      continue;
    }
    size_t at = std::find(joined.begin(), joined.end(), places) - joined.begin();
    if (at == joined.size()) {
      joined.push_back(std::move(places));
      refs.push_back({.value = program.new_value(), .spec = {part.spec.dtype, variables[i]->part_of->sizes}});
    }
    const int64_t first = variables[i]->part_of->first_row;
    const std::optional<std::string> schema = schema_of(kSlice);
    if (!schema) throw internal("this libtorch has no ", kSlice);
    views.push_back(
        {.op = program.intern_op(kSlice, *schema),
         .arguments = {{ValueRef{refs[at].value}}, {int64_t{0}}, {first}, {first + part.spec.sizes[0]}, {int64_t{1}}},
         .results = {{part.value}}});
  }
  program.variables = std::move(refs);
  program.instructions.insert(program.instructions.begin(), views.begin(), views.end());
  return joined;
}

// Traces a forward for batches of several sizes, and makes one exported model of it.
class Exporter {
 public:
  Exporter(const Exported& given, const ExportOptions& options) : given_(given), options_(options) {
    if (given.examples.empty()) throw invalid_argument("export_model: no examples");
    for (size_t i = 0; i < given.examples.size(); ++i) {
      const at::Tensor& example = given.examples[i];
      if (!example.defined()) throw invalid_argument("export_model: example ", i, " is not defined");
      PlainTensors plain;
      examples_.push_back(example.detach().cpu().contiguous());
      batched_.push_back(example.dim() > 0 && given.examples[0].dim() > 0 &&
                         example.size(0) == given.examples[0].size(0));
    }
    batch_ = batched_[0] ? examples_[0].size(0) : 1;
    if (batch_ < 1) throw invalid_argument("export_model: the examples are a batch of ", batch_);
    for (const auto& [name, variable] : given.names) {
      for (const Variable& part : variable.shards()) parts_.push_back(part.state());
    }
    for (const int64_t size : options.batch_sizes) {
      if (size < 1) throw invalid_argument("export_model: batch_sizes has ", size, ", expected at least 1");
    }
  }

  // `to_file`: with the weights, of which large constants are some.
  ExportedModel run(bool to_file) {
    const TracedForward first = trace_for(batch_);
    std::vector<TracedForward> traced;
    if (!options_.batch_sizes.empty()) {
      const std::set<int64_t> sizes(options_.batch_sizes.begin(), options_.batch_sizes.end());
      for (const int64_t size : sizes) traced.push_back(trace_for(size));
    } else if (batched_[0] && try_any(first, traced)) {
      model_.signature.any_batch = true;
    } else {
      traced.push_back(first);
    }
    describe(traced);
    for (TracedForward& each : traced) name_weights(each, to_file);
    for (size_t i = 0; i < traced.size(); ++i) {
      if (model_.signature.any_batch && i < 2) continue;
      model_.signature.batch_sizes.push_back(traced[i].sized.size);
      model_.sized.push_back(traced[i].sized);
    }
    if (model_.signature.any_batch) model_.any = {traced[0].sized, traced[1].sized};
    try {
      check(model_);
    } catch (const Error& error) {
      throw Error(
          Status(error.code(), str_cat("export_model: model \"", options_.name, "\": ", error.status().message())));
    }
    return model_;
  }

  const NamedTensors& weights() const { return weights_; }
  const std::string& why_not_any() const { return why_not_any_; }

 private:
  // Examples for a batch of another size: the same ones, again if need be.
  std::vector<at::Tensor> examples_for(int64_t size) const {
    PlainTensors plain;
    std::vector<at::Tensor> examples = examples_;
    for (size_t i = 0; i < examples.size(); ++i) {
      if (!batched_[i] || size == batch_) continue;
      examples[i] = examples[i].index_select(0, at::arange(size, at::kLong).remainder(batch_));
    }
    return examples;
  }

  TracedForward trace_for(int64_t size) const {
    TracedForward made;
    auto forward = [&](const std::vector<at::Tensor>& arguments) {
      c10::AutoGradMode no_gradients(false);
      const Features outputs = given_.forward(arguments);
      made.outputs.clear();
      made.names = outputs.names();
      for (const at::Tensor& output : outputs.tensors()) {
        if (!output.defined()) throw invalid_argument("it returns a tensor that is not defined");
        made.outputs.push_back(spec_of(output));
      }
      return outputs.tensors();
    };
    TracedProgram traced;
    const std::string about =
        str_cat("export_model: the forward of model \"", options_.name, "\", with batches of ", size);
    try {
      traced = trace(forward, examples_for(size), {.name = options_.name, .portable = options_.portable});
    } catch (const Error& error) {
      throw Error(Status(error.code(), str_cat(about, ": ", error.status().message())));
    } catch (const c10::Error& error) {
      throw invalid_argument(about, ": ", error.what_without_backtrace());
    }
    put_on_one_device(traced.program);
    made.sized = {size, std::move(traced.program)};
    made.variables = join_parts(made.sized.program, traced.variables, parts_);
    return made;
  }

  // Whether one program will do for batches of all sizes: the first two of `traced`, and perhaps one for single
  // examples, which broadcasting may treat in another way.
  bool try_any(const TracedForward& first, std::vector<TracedForward>& traced) {
    try {
      traced = {trace_for(2), trace_for(3)};
      const std::vector<TracedForward> others{trace_for(5), first};
      for (const TracedForward& other : others) {
        if (other.sized.size == 1) continue;
        const auto guess = resized(traced[0].sized, traced[1].sized, other.sized.size);
        if (guess && serialize(*guess) == serialize(other.sized.program)) continue;
        throw failed_precondition("what it does with batches of ", other.sized.size,
                                  " and of 2 differs in more than sizes");
      }
    } catch (const Error& error) {
      why_not_any_ = error.status().message();
      traced.clear();
      return false;
    }
    try {
      TracedForward single = first.sized.size == 1 ? first : trace_for(1);
      const auto guess = resized(traced[0].sized, traced[1].sized, 1);
      if (!guess || serialize(*guess) != serialize(single.sized.program)) traced.push_back(std::move(single));
    } catch (const Error&) {
      // The general program is for those who give it one example.
    }
    return true;
  }

  static const std::vector<std::string>& names_or(const std::vector<std::string>& names, const char* word,
                                                  const std::vector<std::string>& otherwise) {
    if (names.empty() || names.size() == otherwise.size()) return names.empty() ? otherwise : names;
    throw invalid_argument("export_model: names for ", names.size(), " ", word, "s, but there are ", otherwise.size());
  }

  void describe(const std::vector<TracedForward>& traced) {
    ModelSignature& signature = model_.signature;
    signature.name = options_.name;
    const std::vector<std::string> inputs =
        names_or(options_.inputs, "input", names_by_place("input", examples_.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      TensorSpec spec = spec_of(examples_[i]);
      if (batched_[i]) spec.sizes[0] = kBatchSize;
      signature.inputs.push_back({inputs[i], std::move(spec)});
    }
    const TracedForward &one = traced.front(), &other = traced[traced.size() > 1 ? 1 : 0];
    const std::vector<std::string> outputs = names_or(options_.outputs, "output", one.names);
    for (size_t i = 0; i < outputs.size(); ++i) {
      TensorSpec spec = one.outputs[i];
      const std::vector<int64_t>& sizes = other.outputs.at(i).sizes;
      for (size_t j = 0; j < spec.sizes.size() && j < sizes.size(); ++j) {
        const bool is_batch = batched_[0] && j == 0 && spec.sizes[0] == one.sized.size && sizes[0] == other.sized.size;
        if (is_batch || sizes[j] != spec.sizes[j]) spec.sizes[j] = kBatchSize;
      }
      signature.outputs.push_back({outputs[i], std::move(spec)});
    }
  }

  // That it has in the module, or in checkpoints.
  std::string name_of_places(const Places& places) const {
    const Variable::State& state = *places[0];
    const auto whole = state.copy_of.lock();
    for (const auto& [name, variable] : given_.names) {
      const std::vector<Variable>& shards = variable.shards();
      const bool is_all = shards.size() == places.size() && places.size() > 1;
      if (variable.state() == places[0] || (whole && variable.state() == whole) ||
          (is_all && shards[0].state() == places[0])) {
        return name;
      }
    }
    if (places.size() > 1) return state.part_of->name;
    return whole ? whole->options.name : state.options.name;
  }

  // The program's variables get the names of tensors in the file.
  void name_weights(TracedForward& traced, bool to_file) {
    Program& program = traced.sized.program;
    for (size_t i = 0; i < program.variables.size(); ++i) {
      const Places& places = traced.variables[i];
      const Variable::State& state = *places[0];
      VariableRef& variable = program.variables[i];
      const auto known =
          std::find_if(known_.begin(), known_.end(), [&](const auto& each) { return each.first == places; });
      if (known != known_.end()) {
        variable.name = known->second;
        continue;
      }
      const auto whole = state.copy_of.lock();
      const auto& part = state.part_of;
      variable.name = unused(name_of_places(places));
      known_.emplace_back(places, variable.name);
      const std::string& in_checkpoints = part ? part->name : whole ? whole->options.name : state.options.name;
      model_.weights.push_back({.name = variable.name,
                                .spec = variable.spec,
                                .variable = in_checkpoints,
                                .variable_sizes = part ? part->sizes : variable.spec.sizes,
                                .first_row = part ? part->first_row : 0});
      // To read one may take long, and fills a table whose rows are made on demand.
      if (to_file) weights_.emplace_back(variable.name, value_of(places));
    }
    if (!to_file) return;
    std::erase_if(program.constants, [&](const Constant& constant) {
      if (constant.is_number || !constant.bytes || static_cast<int64_t>(constant.bytes->size()) < kLargeConstant) {
        return false;
      }
      program.variables.push_back({.value = constant.value, .name = name_of_constant(constant), .spec = constant.spec});
      return true;
    });
  }

  std::string name_of_constant(const Constant& constant) {
    for (const auto& [known, name] : constants_) {
      if (known.spec == constant.spec && *known.bytes == *constant.bytes) return name;
    }
    const std::string name = unused(str_cat("constant_", constants_.size()));
    constants_.emplace_back(constant, name);
    model_.weights.push_back({.name = name, .spec = constant.spec});
    weights_.emplace_back(name, tensor_of(constant));
    return name;
  }

  std::string unused(const std::string& wish) const {
    std::string name = wish;
    auto is_taken = [&] {
      return std::any_of(model_.weights.begin(), model_.weights.end(),
                         [&](const ExportedWeight& each) { return each.name == name; });
    };
    for (int i = 1; is_taken(); ++i) name = str_cat(wish, "_", i);
    return name;
  }

  const Exported& given_;
  const ExportOptions& options_;
  std::vector<at::Tensor> examples_;
  std::vector<bool> batched_;
  int64_t batch_ = 1;
  ExportedModel model_;
  NamedTensors weights_;
  Places parts_;                                       // of the variables that have names
  std::vector<std::pair<Places, std::string>> known_;  // and what they are called in the file
  std::vector<std::pair<Constant, std::string>> constants_;
  std::string why_not_any_;
};

Exported exported_of(const Model& model, const std::vector<at::Tensor>& examples, const ExportOptions& options) {
  std::vector<std::string> names = options.inputs;
  names.resize(examples.size());
  auto forward = [model, names](const std::vector<at::Tensor>& inputs) {
    return model.parts().forward(Features(names, inputs));
  };
  return {forward, examples, model.variables().named()};
}

template <class Act>
auto in_eval(const Model& model, const Act& act) {
  const bool was_training = model.parts().set_training(false);
  const absl::Cleanup as_it_was = [&] { model.parts().set_training(was_training); };
  return act();
}

}  // namespace

ExportReport export_internal::write(const Exported& given, const std::string& file, const ExportOptions& options) {
  Exporter exporter(given, options);
  const ExportedModel model = exporter.run(/*to_file=*/true);
  std::map<std::string, std::string> metadata = options.metadata;
  metadata.emplace("format", "pt");
  metadata[kExportedModelKey] = to_text(model);
  write_weights(file, exporter.weights(), metadata);
  if (!exporter.why_not_any().empty()) {
    MUSTER_LOG(warning) << "model \"" << options.name << "\" takes batches of "
                        << absl::StrJoin(model.signature.batch_sizes, ", ")
                        << " examples alone: " << exporter.why_not_any();
  }
  return {.any_batch = model.signature.any_batch,
          .batch_sizes = model.signature.batch_sizes,
          .why_not_any = exporter.why_not_any(),
          .weights = exporter.weights().size()};
}

ExportReport export_model(const Model& model, const std::string& file, const std::vector<at::Tensor>& examples,
                          const ExportOptions& options) {
  return in_eval(model, [&] { return export_internal::write(exported_of(model, examples, options), file, options); });
}

std::string exported_text(const Model& model, const std::vector<at::Tensor>& examples, const ExportOptions& options) {
  return in_eval(model, [&] {
    const Exported exported = exported_of(model, examples, options);
    return to_text(Exporter(exported, options).run(/*to_file=*/false));
  });
}

}  // namespace muster
