// Loads a model that export_model has written and runs it: no module, no training code.
//   serve digits.safetensors
#include <ATen/ATen.h>

#include <iostream>

#include "muster/muster.h"

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "serve MODEL\n", 2;
  const auto model = muster::LoadedModel::load(argv[1]);
  std::cout << model.signature().to_string();
  std::vector<at::Tensor> inputs;
  for (muster::ModelTensor input : model.signature().inputs) {
    if (!input.spec.sizes.empty() && input.spec.sizes[0] == muster::kBatchSize) input.spec.sizes[0] = 4;
    inputs.push_back(at::rand(input.spec.sizes));
  }
  for (const at::Tensor& output : model.run(inputs)) std::cout << output << "\n";
} catch (const muster::Error& error) {
  return std::cerr << error.what() << "\n", 1;
}
