#include "muster/fit/forward.h"

#include "muster/base/status.h"
#include "muster/base/strings.h"

namespace muster {

std::vector<std::string> names_by_place(const char* word, size_t count) {
  if (count == 1) return {word};
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(str_cat(word, "_", i));
  return names;
}

Features named_outputs(Features outputs) {
  const size_t count = outputs.tensors().size();
  if (count == 0) throw invalid_argument("forward() of the model gives no tensor, expected at least one");
  if (outputs.names().empty()) return {names_by_place("output", count), outputs.tensors()};
  if (outputs.names().size() == count) return outputs;
  throw invalid_argument("forward() of the model gives ", count, " tensors with ", outputs.names().size(),
                         " names, expected as many");
}

void forward_internal::refuse_no_module() {
  throw invalid_argument("compile: the module is empty (nullptr), expected one such as torch::nn::Linear(3, 1)");
}

void forward_internal::refuse_inputs(const InputsTaken& taken, size_t given) {
  throw invalid_argument("forward() of the model takes ", taken.count,
                         taken.most > taken.count ? str_cat(" to ", taken.most) : "", " tensors, but an example has ",
                         given,
                         " inputs; select() some, label() those that are targets, or let forward() take "
                         "muster::Features");
}

}  // namespace muster
