// A program that trains in step with others, for in_step_test.py:
//   in_step [--steps N] [--optimizer momentum|adam] [--devices NAME,…] [--weights FILE] [--checkpoints DIRECTORY]
//           [--start-timeout MS] [--differs-at STEP] [--table ROWS]
//           [--save-every STEPS] [--preemption yes] [--bytes-per-pack N] [--norm synchronized]
//   in_step --rounds N
//   in_step --export FILE [--accumulate N]
//   in_step --linear-models yes     prints what the models of fit/test_linear_models.h have learned
// Alone without TF_CONFIG. Prints "step I" after each step, and writes the bytes of its weights at the end.
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "muster/fit/test_linear_models.h"
#include "muster/muster.h"
#include "muster/train/sync_batch_norm.h"

namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

bool fails(const std::function<void()>& what) {
  try {
    what();
  } catch (const muster::Error&) {
    return true;
  }
  return false;
}

// One strategy after the other in the same processes: what they reduce, gather and begin with.
int make_anew(int rounds) {
  for (int round = 1; round <= rounds; ++round) {
    const muster::MultiWorkerMirroredStrategy strategy{muster::TfConfigClusterResolver()};
    const int size = strategy.num_replicas_in_sync(), rank = strategy.worker();
    const std::vector<int64_t> ones(static_cast<size_t>(round), 1);
    const auto variable = strategy.make<muster::Variable>(rank == 0 ? torch::ones(ones) : torch::zeros(ones));
    expect(variable.value().equal(torch::ones(ones)), "a variable begins with the value of the first worker");

    auto same = muster::function([](torch::Tensor x) { return x; });
    auto mean = [&](const torch::Tensor& x) { return strategy.reduce(muster::ReduceOp::kMean, strategy.run(same, x)); };
    auto sum = [&](const torch::Tensor& x) { return strategy.reduce(muster::ReduceOp::kSum, strategy.run(same, x)); };
    expect(mean(torch::tensor(static_cast<double>(rank))).item<double>() == (size - 1) / 2.0, "the mean of the ranks");
    expect(sum(torch::tensor(rank + 1)).item<int64_t>() == size * (size + 1) / 2, "the sum of 1, 2, …");
    const torch::Tensor pair = torch::tensor({2 * rank + 1, 2 * rank + 2});
    expect(sum(pair).equal(torch::tensor({size * size, size * (size + 1)})), "the sum of [1, 2], [3, 4], …");
    expect(sum(torch::ones({})).item<float>() == static_cast<float>(size), "the sum of ones");
    expect(fails([&] { sum(torch::tensor({true})); }), "a sum of bool is refused, and the group goes on");
    const muster::Sgd sgd({variable}, {.learning_rate = 1});
    auto alone = muster::function([&](torch::Tensor x) { sgd.minimize((variable.value() * x).sum()); });
    expect(fails([&] { alone(torch::ones({})); }), "one worker does not take a step alone");
    expect(variable.value().equal(torch::ones(ones)), "the variable is what it was");
    const torch::Tensor cube = torch::tensor({{{1, 2}, {1, 2}}});
    for (int64_t axis = 0; axis < 3; ++axis) {
      expect(strategy.gather(strategy.run(same, cube), axis)
                 .equal(torch::cat(std::vector<torch::Tensor>(static_cast<size_t>(size), cube), axis)),
             "what is gathered along an axis");
    }
  }
  std::cout << "all " << rounds << " rounds" << std::endl;
  return 0;
}

// fit() over three batches, of which the last may make no whole step, and the model that comes of it without its code.
int fit_and_export(const muster::Strategy& strategy, int index, std::map<std::string, std::string>& flags) {
  torch::manual_seed(static_cast<uint64_t>(index) + 1);
  auto net = strategy.make<torch::nn::Linear>(8, 1);
  muster::Model model = muster::compile(net, {.optimizer = muster::Sgd({.learning_rate = 0.05}),
                                              .loss = muster::mean_squared_error,
                                              .accumulate = std::stoll(flags["--accumulate"])});
  const torch::Tensor x = torch::arange(48 * 8).view({48, 8}).sin(), y = x.sum(1, true);
  const std::string own = flags["--export"] + ".logs." + std::to_string(index);
  const muster::History history = model.fit(
      muster::Dataset::tensors({x, y}).batch(16),
      {.epochs = 2, .callbacks = {muster::CsvLogger(own + "/log.csv"), muster::TensorBoard({.directory = own})}});
  std::cout << "loss " << history["loss"].back() << std::endl;

  const std::string file = flags["--export"] + "." + std::to_string(index);
  muster::export_model(model, file, {x});
  const muster::LoadedModel loaded = muster::LoadedModel::load(file);
  expect(loaded(x).allclose(model.predict({x, y})), "an exported model gives what the trained one does");
  return 0;
}

int run(std::map<std::string, std::string>& flags) {
  muster::set_local_options({.devices = {.cpus = 4, .gpus = false}});
  if (const int rounds = std::stoi(flags["--rounds"]); rounds > 0) return make_anew(rounds);

  const std::vector<std::string> devices = split(flags["--devices"]);
  const bool alone = std::getenv("TF_CONFIG") == nullptr;
  const muster::MultiWorkerOptions options{
      .devices = devices,
      .start_timeout = std::chrono::milliseconds(std::stoi(flags["--start-timeout"])),
      .communication = {.bytes_per_pack = std::stoll(flags["--bytes-per-pack"])}};
  const muster::Strategy strategy =
      alone ? muster::Strategy(muster::MirroredStrategy(devices))
            : muster::Strategy(muster::MultiWorkerMirroredStrategy(muster::TfConfigClusterResolver(), options));
  std::cout << strategy.num_replicas_in_sync() << " replicas" << std::endl;

  // What each begins with is its own; what counts is that of the first.
  const muster::TfConfigClusterResolver resolver;
  const int index = alone ? 0 : resolver.task_index().value_or(0);
  if (!flags["--linear-models"].empty()) {
    const double linear = muster::testing_support::linear_loss(strategy);
    std::cout << "linear " << linear << " wide_and_deep " << muster::testing_support::wide_and_deep_loss(strategy)
              << std::endl;
    return 0;
  }
  if (!flags["--export"].empty()) return fit_and_export(strategy, index, flags);
  torch::manual_seed(static_cast<uint64_t>(index) + 1);
  torch::nn::Sequential layers(torch::nn::Linear(8, 300));
  if (flags["--norm"] == "synchronized") layers->push_back(muster::SyncBatchNorm(300));
  layers->extend(*torch::nn::Sequential(torch::nn::ReLU(), torch::nn::Linear(300, 40), torch::nn::ReLU(),
                                        torch::nn::Linear(40, 1)));
  auto net = strategy.make<torch::nn::Sequential>(layers);
  auto table = strategy.make<muster::Variable>(torch::randn({std::stoi(flags["--table"]), 8}));
  std::vector<muster::Variable> trained = muster::adopted(net).trainable();
  trained.push_back(table);
  std::unique_ptr<muster::Optimizer> optimizer;
  if (flags["--optimizer"] == "adam") {
    optimizer = std::make_unique<muster::Adam>(trained, muster::AdamOptions{.learning_rate = 0.01});
  } else {
    optimizer = std::make_unique<muster::Sgd>(trained, muster::SgdOptions{.learning_rate = 0.05, .momentum = 0.9});
  }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const torch::Tensor x = torch::randn({64, 8}, generator), y = x.sum(1, true).sin();
  auto batches = strategy.distribute(muster::Dataset::tensors({x, y}).batch(16).repeat());
  auto step = muster::function([&](muster::Iterator& it) {
    auto [inputs, targets] = it.next();
    const torch::Tensor ids = inputs.select(1, 0).mul(10).to(torch::kLong).abs().remainder(table.sizes()[0]);
    torch::Tensor loss = torch::mse_loss(net->forward(inputs + muster::lookup(table, ids)), targets);
    optimizer->minimize(loss);
    return loss;
  });
  auto other = muster::function([&](torch::Tensor value) { return value; });

  std::optional<muster::Checkpoints> checkpoints;
  int64_t done = 0;
  if (!flags["--checkpoints"].empty()) {
    checkpoints.emplace(strategy, muster::CheckpointsOptions{.directory = flags["--checkpoints"]});
    done = checkpoints->restore().value_or(0);
    std::cout << "restored " << done << std::endl;
    for (int64_t i = 0; i < done; ++i) static_cast<void>(batches.next());
  }
  std::optional<muster::Preemption> preemption;
  if (checkpoints && flags["--preemption"] == "yes") preemption.emplace(strategy, *checkpoints);
  const int64_t steps = std::stoll(flags["--steps"]), differs_at = std::stoll(flags["--differs-at"]);
  while (done < steps) {
    if (done == differs_at && index == 1) {
      static_cast<void>(strategy.reduce(muster::ReduceOp::kSum, strategy.run(other, torch::ones({3}))));
    }
    strategy.run(step, batches);
    std::cout << "step " << ++done << std::endl;
    if (checkpoints && done % std::stoll(flags["--save-every"]) == 0) checkpoints->save(done);
    if (preemption && preemption->after_step(done)) return muster::kPreempted;
  }

  if (flags["--weights"].empty()) return 0;
  muster::adopted(net).write_back();
  std::ofstream file(flags["--weights"] + "." + std::to_string(index), std::ios::binary);
  std::vector<torch::Tensor> weights = net->parameters();
  weights.push_back(table.value());
  for (const torch::Tensor& weight : weights) {
    const torch::Tensor bytes = weight.detach().contiguous();
    file.write(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::streamsize>(bytes.nbytes()));
  }
  return file.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags{{"--steps", "20"},
                                           {"--optimizer", "momentum"},
                                           {"--devices", "/device:CPU:0"},
                                           {"--weights", ""},
                                           {"--checkpoints", ""},
                                           {"--start-timeout", "60000"},
                                           {"--differs-at", "-1"},
                                           {"--table", "50"},
                                           {"--save-every", "5"},
                                           {"--preemption", ""},
                                           {"--bytes-per-pack", "8000000"},
                                           {"--rounds", "0"},
                                           {"--norm", ""},
                                           {"--export", ""},
                                           {"--linear-models", ""},
                                           {"--accumulate", "1"}};
  for (int i = 1; i + 1 < argc; i += 2) flags.at(argv[i]) = argv[i + 1];
  try {
    return run(flags);
  } catch (const std::exception& error) {
    std::cerr << "in_step: " << error.what() << std::endl;
    return 1;
  }
}
