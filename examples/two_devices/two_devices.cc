// Trains a classifier of points on three spirals, of which 5 % have a wrong label: nobody can be right about more than
// 95 %. The step is traced once. Half of each batch is worked on by one logical device and half by another, at the same
// time.
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>

#include "muster/muster.h"

namespace {

constexpr int kArms = 3;
constexpr int64_t kBatch = 512;
constexpr double kWrongLabels = 0.05, kLearningRate = 0.1, kMomentum = 0.9;

struct Points {
  torch::Tensor x;      // float32[n, 2]
  torch::Tensor label;  // int64[n]
};

Points spirals(int64_t count) {
  const torch::Tensor arm = torch::randint(kArms, {count});
  const torch::Tensor radius = torch::rand({count}).sqrt();
  const torch::Tensor angle = 2 * M_PI / kArms * arm + 5 * radius + 0.08 * torch::randn({count});
  const torch::Tensor wrong = torch::rand({count}) < kWrongLabels;
  const torch::Tensor other = (arm + torch::randint(1, kArms, {count})) % kArms;
  return {torch::stack({radius * angle.cos(), radius * angle.sin()}, 1), torch::where(wrong, other, arm)};
}

// How many instructions of each kind run on which device.
void print_placement(const muster::Program& program) {
  std::vector<std::string> devices;
  std::map<std::string, std::map<std::string, int>> counts;
  auto count = [&](const std::string& what, int32_t device) {
    const std::string name = program.devices[device].substr(program.devices[device].rfind("/device:") + 8);
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) devices.push_back(name);
    ++counts[what][name];
  };
  for (const auto& variable : program.variables) count("(variables)", variable.device);
  for (const auto& instruction : program.instructions) count(program.op_of(instruction).name, instruction.device);
  std::sort(devices.begin(), devices.end());
  std::cout << "\nThe step as it runs, by device:\n  " << std::left << std::setw(36) << "op" << std::right;
  for (const std::string& device : devices) std::cout << std::setw(8) << device;
  for (const auto& [op, by_device] : counts) {
    std::cout << "\n  " << std::left << std::setw(36) << op << std::right;
    for (const std::string& device : devices) {
      std::cout << std::setw(8) << (by_device.contains(device) ? std::to_string(by_device.at(device)) : "-");
    }
  }
  std::cout << "\n\n" << std::flush;
}

struct Options {
  int steps = 1500;
  const char* save = nullptr;  // where to write the program
};

int run(const Options& options) {
  muster::set_local_options({.devices = {.cpus = 2, .gpus = false}});
  torch::manual_seed(7);
  const Points train = spirals(20'000), test = spirals(5'000);

  torch::nn::Sequential net(torch::nn::Linear(2, 128), torch::nn::Tanh(), torch::nn::Linear(128, 128),
                            torch::nn::Tanh(), torch::nn::Linear(128, kArms));
  auto adopted = muster::adopt(net);
  std::vector<muster::Variable> weights = adopted.trainable();
  std::vector<muster::Variable> speeds;
  for (const muster::Variable& weight : weights) {
    speeds.emplace_back(torch::zeros(weight.sizes()),
                        muster::VariableOptions{.name = weight.name() + ".speed", .trainable = false});
  }

  auto step = muster::function(
      [&](torch::Tensor x, torch::Tensor label) {
        const auto xs = x.chunk(2), labels = label.chunk(2);
        torch::Tensor loss = torch::zeros({});
        for (int half = 0; half < 2; ++half) {
          // The backward ops of this half follow to the same device.
          muster::DeviceScope on("/device:CPU:" + std::to_string(half));
          loss = loss + torch::cross_entropy_loss(net->forward(xs[half]), labels[half]) / 2;
        }
        const auto gradients = muster::gradient(loss, weights);
        for (size_t i = 0; i < weights.size(); ++i) {
          speeds[i].assign(kMomentum * speeds[i].value() + gradients[i]);
          weights[i].assign_sub(kLearningRate * speeds[i].value());
        }
        return loss;
      },
      {.name = "step"});

  auto accuracy = muster::function([&](torch::Tensor x, torch::Tensor label) {
    return (net->forward(x).argmax(1) == label).to(torch::kFloat).mean();
  });

  auto batch = [&] {
    const torch::Tensor rows = torch::randint(train.x.size(0), {kBatch});
    return Points{train.x.index_select(0, rows), train.label.index_select(0, rows)};
  };
  const Points example = batch();
  const muster::Program program = step.program(example.x, example.label);
  muster::LocalWorker& worker = muster::local_worker();
  std::cout << "Three spirals, " << train.x.size(0) << " points, 5 % of the labels wrong: 95 % is the best there is.\n"
            << "Two logical devices share the CPU of this process; each takes half of a batch of " << kBatch << ".\n";
  const muster::ProgramHandle handle = worker.register_program(program);
  print_placement(worker.prepared_program(handle));
  worker.deregister_program(handle);
  if (options.save != nullptr) std::ofstream(options.save, std::ios::binary) << muster::serialize(program);

  double right = 0;
  {
    muster::ProgressBar bar({.title = "train", .total = options.steps});
    torch::Tensor loss;
    for (int i = 1; i <= options.steps; ++i) {
      const Points points = batch();
      loss = step(points.x, points.label);
      if (i % 50 == 0 || i == options.steps) right = accuracy(test.x, test.label).item<double>();
      std::ostringstream note;
      note << std::fixed << std::setprecision(3) << "loss " << loss.item<double>() << "  accuracy "
           << std::setprecision(1) << 100 * right << " %";
      bar.update(i, note.str());
    }
  }

  std::cout << "\nTraced " << step.stats().misses << " time and replayed " << step.stats().hits
            << " times. On points that it has never seen the net is right about " << std::fixed << std::setprecision(1)
            << 100 * right << " %.\n"
            << "Next: build/bin/two_devices --save step.program && build/bin/muster dump step.program   "
               "# what the step became\n";
  return right > 1.5 / kArms ? 0 : 1;
}

int usage() {
  std::cerr << "usage: two_devices [--steps N] [--save FILE]\n"
            << "  --steps N    how long to train (1500)\n"
            << "  --save FILE  write the traced step there, for muster dump\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return usage();
    if (std::strcmp(argv[i], "--steps") == 0) {
      options.steps = std::atoi(argv[i + 1]);
      if (options.steps < 1) return usage();
    } else if (std::strcmp(argv[i], "--save") == 0) {
      options.save = argv[i + 1];
    } else {
      return usage();
    }
  }
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "two_devices: " << error.what() << "\n";
    return 1;
  }
}
