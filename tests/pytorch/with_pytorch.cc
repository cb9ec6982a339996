// What Muster reads and writes of weights, and the steps of its optimizers, for pytorch_test.py, which holds them
// against what PyTorch and safetensors make of the same:
//   with_pytorch forward WEIGHTS X Y [PREFIX]   the net with these weights, whose names begin with PREFIX, maps X to Y
//   with_pytorch tied WEIGHTS X Y               the same for a net that uses one weight twice
//   with_pytorch digits X Y                     what examples/fine_tune has to tell apart
//   with_pytorch steps RULE START GRADIENTS VALUES [OPTION=NUMBER]...
//                                               the values after each step that the rule takes from START down
//                                               GRADIENTS, and, with average=…, their average at the end
//   with_pytorch write FOLDER                   net.safetensors, half.safetensors, model.safetensors, x.npy and y.npy
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <memory>
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

// The options of a rule, by the names that they have here.
class Numbers {
 public:
  explicit Numbers(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t sign = word.find('=');
      numbers_[word.substr(0, sign)] = std::stod(word.substr(sign + 1));
    }
  }

  template <class Number>
  void give(const std::string& name, Number& to) {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) return;
    to = static_cast<Number>(found->second);
    numbers_.erase(found);
  }
  bool all_given() const { return numbers_.empty(); }

 private:
  std::map<std::string, double> numbers_;
};

template <class Rule, class Options>
std::shared_ptr<muster::Optimizer> optimizer(const muster::Variable& variable, Numbers numbers) {
  Options options;
  double rate = options.learning_rate.initial(), average = -1;
  numbers.give("learning_rate", rate);
  numbers.give("average", average);
  options.learning_rate = rate;
  if (average >= 0) options.all.average = average;
#define GIVE(option) \
  if constexpr (requires { options.option; }) numbers.give(#option, options.option)
  GIVE(weight_decay);
  GIVE(momentum);
  GIVE(nesterov);
  GIVE(initial_accumulator);
  GIVE(epsilon);
  GIVE(beta1);
  GIVE(beta2);
  GIVE(amsgrad);
  GIVE(alpha);
  GIVE(centered);
  GIVE(rho);
  GIVE(momentum_decay);
#undef GIVE
  if (!numbers.all_given()) throw muster::invalid_argument("an option that the rule has not");
  return std::make_shared<Rule>(std::vector{variable}, options);
}

void steps(const std::vector<std::string>& words) {
  const muster::Variable variable(muster::read_npy(words[2]));
  const at::Tensor gradients = muster::read_npy(words[3]);
  const Numbers numbers({words.begin() + 5, words.end()});
  using Make = std::shared_ptr<muster::Optimizer> (*)(const muster::Variable&, Numbers);
  const std::map<std::string, Make> rules{{"SGD", optimizer<muster::Sgd, muster::SgdOptions>},
                                          {"Adagrad", optimizer<muster::Adagrad, muster::AdagradOptions>},
                                          {"Adam", optimizer<muster::Adam, muster::AdamOptions>},
                                          {"AdamW", optimizer<muster::AdamW, muster::AdamWOptions>},
                                          {"RMSprop", optimizer<muster::RmsProp, muster::RmsPropOptions>},
                                          {"Adadelta", optimizer<muster::Adadelta, muster::AdadeltaOptions>},
                                          {"Adamax", optimizer<muster::Adamax, muster::AdamaxOptions>},
                                          {"NAdam", optimizer<muster::Nadam, muster::NadamOptions>}};
  const auto rule = rules.find(words[1]);
  if (rule == rules.end()) throw muster::invalid_argument("there is no rule ", words[1]);
  const std::shared_ptr<muster::Optimizer> made = rule->second(variable, numbers);
  auto step = muster::function([&](at::Tensor gradient) { made->apply({.dense = {gradient}}); });
  std::vector<at::Tensor> values;
  for (const at::Tensor& gradient : gradients.unbind()) {
    step(gradient.clone());
    values.push_back(variable.value().clone());
  }
  if (made->keeps_averages()) {
    made->take_averages();
    values.push_back(variable.value().clone());
  }
  muster::write_npy(words[4], torch::stack(values));
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
    } else if (words.size() >= 5 && words[0] == "steps") {
      steps(words);
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
