// Writes models to files that need nothing of the code that has trained them: see LoadedModel.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/fit/forward.h"
#include "muster/fit/model_signature.h"
#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/tracer/trace.h"

namespace muster {

class Model;

struct ExportOptions {
  std::string name = "model";
  std::vector<std::string> inputs{};   // their names; else "input", or "input_0", "input_1" and so on
  std::vector<std::string> outputs{};  // likewise; else as forward() names them
  // The sizes of batches that the model will take. None: any, if the program is the same for all of them up to sizes;
  // else that of the examples.
  std::vector<int64_t> batch_sizes{};
  // Only ops that every kind of device has: a model that was exported without a GPU runs on one, and the other way
  // around. Without, attention and LSTM use what is fastest here, and run on such devices alone.
  bool portable = true;
  std::map<std::string, std::string> metadata{};  // of the file
};

struct ExportReport {
  bool any_batch = false;
  std::vector<int64_t> batch_sizes{};  // else these
  std::string why_not_any{};           // in words; empty if any_batch, or if sizes were given
  size_t weights = 0;                  // tensors in the file
};

namespace export_internal {

struct Exported {
  std::function<Features(const std::vector<at::Tensor>& inputs)> forward;
  std::vector<at::Tensor> examples;
  std::vector<std::pair<std::string, Variable>> names{};  // that variables are to have in the file; others keep theirs
};

ExportReport write(const Exported& model, const std::string& file, const ExportOptions& options);

template <class Call, size_t... I>
auto call_with(Call& call, const std::vector<at::Tensor>& tensors, std::index_sequence<I...>) {
  return call(tensors[I]...);
}

// Puts a module in eval() and each of its parts back into what it was.
template <class Module>
class [[nodiscard]] InEval {
 public:
  explicit InEval(Module& module) : module_(module) {
    for (const auto& part : module.modules(/*include_self=*/false)) before_.emplace_back(part, part->is_training());
    training_ = module.is_training();
    module.eval();
  }
  ~InEval() {
    module_.train(training_);
    for (auto& [part, training] : before_) part->train(training);  // a part comes before its own parts
  }
  InEval(const InEval&) = delete;
  InEval& operator=(const InEval&) = delete;

 private:
  using Part = typename decltype(std::declval<Module&>().modules(false))::value_type;
  Module& module_;
  std::vector<std::pair<Part, bool>> before_;
  bool training_;
};

}  // namespace export_internal

// Traces what `forward` does with tensors like the examples, and writes the program and the values of all that it reads
// to one safetensors file, which replaces one that is there:
//   muster::export_model(net, "digits.safetensors", {x});
// The first dimension of the examples is the batch, where it is as long as that of the first example. `forward` is a
// torch::nn module, which is called in eval(), or anything that takes as many tensors, such as a lambda or a
// muster::function; it returns a tensor or several. Weights have the module's names, so that Python's
// safetensors.torch.load_file gives its state_dict. Throws Error{kInvalidArgument} for a forward that changes variables
// or needs more than its arguments, and as SafetensorsWriter.
template <class Forward, size_t N>
  requires(!std::same_as<Forward, Model>)
ExportReport export_model(Forward forward, const std::string& file, const at::Tensor (&examples)[N],
                          const ExportOptions& options = {}) {
  const std::vector<at::Tensor> tensors(std::begin(examples), std::end(examples));
  if constexpr (TorchModule<Forward>) {
    const ModuleVariables variables = adopt(forward, {.keep = true});
    auto write = [&]<class Module>(Module& module) {
      auto call = [&](const std::vector<at::Tensor>& inputs) {
        if constexpr (
            requires { module.forward(std::declval<const Features&>()); } && !requires { module.forward(inputs[0]); }) {
          return outputs_of(module.forward(Features(options.inputs, inputs)));
        } else {
          auto forward_of_it = [&](const auto&... each) { return module.forward(each...); };
          return outputs_of(export_internal::call_with(forward_of_it, inputs, std::make_index_sequence<N>()));
        }
      };
      const export_internal::InEval<Module> in_eval(module);
      return export_internal::write({call, tensors, variables.named()}, file, options);
    };
    if constexpr (requires { forward.named_parameters(); }) {
      return write(forward);
    } else {
      return write(*forward);
    }
  } else {
    auto call = [&](const std::vector<at::Tensor>& inputs) {
      return outputs_of(export_internal::call_with(forward, inputs, std::make_index_sequence<N>()));
    };
    return export_internal::write({call, tensors}, file, options);
  }
}

// The same for a model of compile(), whose forward() takes as many tensors, or Features of the names of the inputs.
// With CompileOptions::mixed_precision, too, it is exported as it is, without bfloat16.
ExportReport export_model(const Model& model, const std::string& file, const std::vector<at::Tensor>& examples,
                          const ExportOptions& options = {});

// The forward program of a model without its weights, as `muster export` finds it in the metadata of a checkpoint:
//   checkpoints.save(step, {{muster::kExportedModelKey, muster::exported_text(model, {x})}});
std::string exported_text(const Model& model, const std::vector<at::Tensor>& examples,
                          const ExportOptions& options = {});

}  // namespace muster
