#include "muster/fit/exported/loaded_model.h"

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_join.h>
#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <optional>

#include "muster/base/status.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/graph/aliases.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/train/weights_file.h"

namespace muster {

struct LoadedModel::State {
  // A program at the local worker, as long as somebody may run it.
  struct ReadyProgram {
    explicit ReadyProgram(const Program& program) : handle(local_worker().register_program(program)) {
      const Aliases aliases(program);
      for (const ProgramArgument& argument : program.arguments) {
        written.push_back(aliases.written(aliases.group(argument.value)));
      }
    }
    ~ReadyProgram() {
      try {
        local_worker().deregister_program(handle);
      } catch (const Error&) {
        // It has gone before.
      }
    }
    ReadyProgram(const ReadyProgram&) = delete;
    ReadyProgram& operator=(const ReadyProgram&) = delete;

    const ProgramHandle handle;
    std::vector<bool> written;  // per argument
  };

  explicit State(const std::string& path) : file(path) {
    const auto text = file.metadata().find(kExportedModelKey);
    const std::string where = str_cat("file \"", path, "\"");
    if (text == file.metadata().end()) {
      throw data_loss(where, ": is no exported model: it has tensors, but no program (export_model writes both)");
    }
    model = exported_model_from_text(text->second, where);
    try {
      load_weights();
      program(model.sized.empty() ? model.any->first.size : model.sized[0].size);  // which looks at its ops
    } catch (const Error& error) {
      drop_weights();
      const bool named = error.status().message().starts_with(where);
      throw Error(
          Status(error.code(), named ? error.status().message() : str_cat(where, ": ", error.status().message())));
    } catch (...) {
      drop_weights();
      throw;
    }
  }
  ~State() {
    {
      absl::MutexLock lock(&mu);
      ready.clear();
    }
    drop_weights();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void load_weights() {
    LocalWorker& worker = local_worker();
    const at::Device device = worker.devices().device(worker.devices().default_name());
    for (const ExportedWeight& weight : model.weights) {
      if (!file.has(weight.name) || file.spec(weight.name) != weight.spec) {
        throw data_loss("file \"", file.path(), "\": tensor \"", weight.name, "\" ",
                        file.has(weight.name) ? "is " + file.spec(weight.name).to_string() : "is not there",
                        ", the program expects ", weight.spec.to_string());
      }
      at::Tensor value = read_weight(file, weight.name);
      auto cell = worker.store().declare_new(str_cat(model.signature.name, "/", weight.name), weight.spec, device);
      cells.emplace(weight.name, cell);
      PlainTensors plain;
      cell->replace(value.to(device));
    }
  }

  void drop_weights() {
    for (const auto& [name, cell] : cells) local_worker().store().erase(cell->name());
    cells.clear();
  }

  std::shared_ptr<const ReadyProgram> program(int64_t batch) ABSL_LOCKS_EXCLUDED(mu) {
    {
      absl::MutexLock lock(&mu);
      if (const auto found = ready.find(batch); found != ready.end()) {
        found->second.last_use = ++uses;
        return found->second.program;
      }
    }
    Program wanted = model.program_for(batch);
    for (VariableRef& variable : wanted.variables) variable.name = cells.at(variable.name)->name();
    const auto made = std::make_shared<const ReadyProgram>(wanted);
    std::shared_ptr<const ReadyProgram> unused;  // goes without the lock
    absl::MutexLock lock(&mu);
    if (ready.size() >= kMostPrograms) {
      const auto oldest = std::min_element(ready.begin(), ready.end(), [](const auto& a, const auto& b) {
        return a.second.last_use < b.second.last_use;
      });
      unused = std::move(oldest->second.program);
      ready.erase(oldest);
    }
    Ready& entry = ready[batch];
    if (!entry.program) entry.program = made;
    entry.last_use = ++uses;
    return entry.program;
  }

  // The size of the batch. Throws for inputs that are not as the signature says.
  int64_t check_inputs(const std::vector<at::Tensor>& inputs) const {
    const ModelSignature& signature = model.signature;
    const std::string about = str_cat("model \"", signature.name, "\"");
    if (inputs.size() != signature.inputs.size()) {
      auto append = [](std::string* text, const ModelTensor& input) { *text += input.to_string(); };
      throw invalid_argument(about, ": ", inputs.size(), " inputs, expected ", signature.inputs.size(), " (",
                             absl::StrJoin(signature.inputs, "; ", append), ")");
    }
    std::optional<int64_t> batch;
    std::string first;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ModelTensor& expected = signature.inputs[i];
      if (!inputs[i].defined()) throw invalid_argument(about, ": input \"", expected.name, "\" is not defined");
      if (inputs[i].layout() != at::kStrided) {
        throw invalid_argument(about, ": input \"", expected.name, "\" is sparse, expected a dense tensor");
      }
      const TensorSpec given = spec_of(inputs[i]);
      bool fits = given.dtype == expected.spec.dtype && given.sizes.size() == expected.spec.sizes.size();
      for (size_t j = 0; fits && j < given.sizes.size(); ++j) {
        fits = expected.spec.sizes[j] == kBatchSize || expected.spec.sizes[j] == given.sizes[j];
      }
      if (!fits) {
        throw invalid_argument(about, ": input \"", expected.name, "\" is ", given.to_string(), ", expected ",
                               expected.to_string().substr(expected.name.size() + 2));
      }
      if (expected.spec.sizes.empty() || expected.spec.sizes[0] != kBatchSize) continue;
      if (!batch) {
        batch = given.sizes[0];
        first = expected.name;
      }
      if (*batch != given.sizes[0]) {
        throw invalid_argument(about, ": input \"", expected.name, "\" is a batch of ", given.sizes[0], ", but \"",
                               first, "\" is one of ", *batch);
      }
    }
    return batch.value_or(1);
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    const std::shared_ptr<const ReadyProgram> ready_program = program(check_inputs(inputs));
    {
      PlainTensors plain;
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = inputs[i].detach().contiguous();
        if (ready_program->written[i]) inputs[i] = inputs[i].clone();
      }
    }
    begin_at_their_memory(inputs);
    std::vector<at::Tensor> outputs = local_worker().run(ready_program->handle, std::move(inputs));
    for (at::Tensor& output : outputs) bring_to(at::kCPU, output);
    return outputs;
  }

  struct Ready {
    std::shared_ptr<const ReadyProgram> program;
    uint64_t last_use = 0;
  };

  const SafetensorsFile file;
  ExportedModel model;
  std::map<std::string, std::shared_ptr<VariableCell>> cells;  // by the names of the weights

  absl::Mutex mu;
  std::map<int64_t, Ready> ready ABSL_GUARDED_BY(mu);  // by the size of batches
  uint64_t uses ABSL_GUARDED_BY(mu) = 0;
};

LoadedModel LoadedModel::load(const std::string& file) { return LoadedModel(std::make_shared<State>(file)); }

const ModelSignature& LoadedModel::signature() const { return state_->model.signature; }

std::vector<at::Tensor> LoadedModel::run(const std::vector<at::Tensor>& inputs) const { return state_->run(inputs); }

std::map<std::string, at::Tensor> LoadedModel::run_named(const std::map<std::string, at::Tensor>& inputs) const {
  std::vector<at::Tensor> ordered;
  for (const ModelTensor& input : signature().inputs) {
    const auto found = inputs.find(input.name);
    if (found == inputs.end()) {
      throw invalid_argument(
          "model \"", signature().name, "\": input \"", input.name, "\" is missing; given are ",
          absl::StrJoin(inputs, ", ", [](std::string* out, const auto& given) { *out += given.first; }));
    }
    ordered.push_back(found->second);
  }
  for (const auto& [name, tensor] : inputs) {
    const auto& known = signature().inputs;
    if (std::any_of(known.begin(), known.end(), [&](const ModelTensor& input) { return input.name == name; })) continue;
    auto append = [](std::string* text, const ModelTensor& input) { *text += input.name; };
    throw invalid_argument("model \"", signature().name, "\": it has no input \"", name, "\", only ",
                           absl::StrJoin(known, ", ", append));
  }
  std::vector<at::Tensor> outputs = run(ordered);
  std::map<std::string, at::Tensor> named;
  for (size_t i = 0; i < outputs.size(); ++i) named[signature().outputs[i].name] = std::move(outputs[i]);
  return named;
}

at::Tensor LoadedModel::only_output(const std::vector<at::Tensor>& inputs) const {
  if (signature().outputs.size() != 1) {
    throw failed_precondition("model \"", signature().name, "\" has ", signature().outputs.size(),
                              " outputs; run() gives all of them");
  }
  return run(inputs)[0];
}

}  // namespace muster
