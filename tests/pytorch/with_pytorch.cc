// What Muster reads and writes of weights, for pytorch_test.py, which holds it against what PyTorch and safetensors
// make of the same:
//   with_pytorch forward WEIGHTS X Y [PREFIX]   the net with these weights, whose names begin with PREFIX, maps X to Y
//   with_pytorch tied WEIGHTS X Y               the same for a net that uses one weight twice
//   with_pytorch digits X Y                     what examples/fine_tune has to tell apart
//   with_pytorch write FOLDER                   net.safetensors, half.safetensors, model.safetensors, x.npy and y.npy
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

#include "muster/data/files/numpy_file.h"
#include "muster/data/files/numpy_writer.h"
#include "muster/muster.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(torch::max_pool2d(norm->forward(conv->forward(x)).relu(), 2).flatten(1));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 3)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Linear head{36, 5};
};
TORCH_MODULE(Net);

// Has one weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_parameter("encode", weight);
    register_parameter("decode", weight);
  }
  at::Tensor forward(const at::Tensor& x) { return x.mm(weight).mm(weight.t()); }
  at::Tensor weight = torch::zeros({6, 3});
};
TORCH_MODULE(Tied);

template <class Module>
void forward(Module net, const std::vector<std::string>& words) {
  muster::LoadWeightsOptions options;
  if (words.size() > 4) options.prefixes = {{words[4], ""}};
  muster::load_safetensors(net, words[1], options);
  net->eval();
  torch::NoGradGuard no_gradients;
  muster::write_npy(words[3], net->forward(muster::read_npy(words[2])));
}

void digits(const std::string& x, const std::string& y) {
  const auto [pictures, labels] = muster::Dataset::synthetic_digits(5'000).batch(5'000).iterator().next();
  muster::write_npy(x, pictures);
  muster::write_npy(y, labels);
}

void write(const std::string& folder) {
  torch::manual_seed(1);
  Net net;
  net->forward(torch::randn({16, 1, 8, 8}));  // changes the statistics
  net->eval();
  torch::NoGradGuard no_gradients;
  const at::Tensor x = torch::randn({3, 1, 8, 8});
  muster::save_safetensors(net, folder + "/net.safetensors", {.metadata = {{"epoch", "7"}}});
  muster::save_safetensors(net, folder + "/half.safetensors", {.dtype = torch::kBFloat16});
  muster::export_model(net, folder + "/model.safetensors", {x});
  muster::write_npy(folder + "/x.npy", x);
  muster::write_npy(folder + "/y.npy", net->forward(x));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() >= 4 && words[0] == "forward") {
      forward(Net(), words);
    } else if (words.size() == 4 && words[0] == "tied") {
      forward(Tied(), words);
    } else if (words.size() == 3 && words[0] == "digits") {
      digits(words[1], words[2]);
    } else if (words.size() == 2 && words[0] == "write") {
      write(words[1]);
    } else {
      std::cerr << "with_pytorch: see the comment at its beginning\n";
      return 2;
    }
  } catch (const muster::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
