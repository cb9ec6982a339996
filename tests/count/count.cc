// The smallest training there is, for hosts_test.py and restart_test.py: every step adds one to the variables on the
// parameter servers. It takes steps until its input ends, and then says what was scheduled and what has arrived. With
// --directory D it begins with the newest checkpoint there and saves one after every round, of a table only the rows
// that the round has counted in; --parts N cuts variables. With --ballast MIB it has a table of that size, too, all of
// which every round changes, and saves while the next round goes on. With --fit EPOCHS it is fit() of a small model
// instead, whose backup is in the directory, and which a SIGTERM ends with one.
#include <muster/muster.h>
#include <poll.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <optional>

namespace {

constexpr int kStepsPerRound = 20;
constexpr int64_t kRows = 1000;

bool input_has_ended() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) != 0;  // nobody writes anything
}

std::string flag(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return "";
}

int fit_with_backup(const muster::Strategy& strategy, int epochs, const std::string& directory) {
  muster::Model model =
      muster::compile(strategy.make<torch::nn::Linear>(8, 6),
                      {.optimizer = muster::Adam({.learning_rate = 0.01}), .loss = muster::mean_squared_error});
  const torch::Tensor x = torch::arange(64 * 8).view({64, 8}).sin();
  const auto steps = [&] { return model.optimizer().iterations(); };
  const muster::LambdaCallback tells(
      {.on_train_begin = [&](muster::Training&) { std::cout << "begins after " << steps() << " steps" << std::endl; },
       .on_epoch_end = [](muster::Training& training,
                          const muster::Logs&) { std::cout << "epoch " << training.epoch + 1 << std::endl; },
       .on_train_end = [&](muster::Training&,
                           const muster::Logs&) { std::cout << "ends after " << steps() << " steps" << std::endl; }});
  const muster::History history =
      model.fit(muster::Dataset::tensors({x, x.narrow(1, 0, 6)}).batch(4),
                {.epochs = epochs,
                 .callbacks = {muster::BackupAndRestore({.directory = directory, .preemption = true}), tells},
                 .verbose = 0});
  return history.preempted() ? muster::kPreempted : 0;
}

void count(const muster::ParameterServerStrategy& strategy, const std::string& directory, int64_t ballast) {
  auto counter =
      strategy.make<muster::Variable>(torch::zeros({}, torch::kLong), muster::VariableOptions{.name = "counter"});
  auto table = strategy.make<muster::Variable>(torch::zeros({6}), muster::VariableOptions{.name = "table"});
  auto rows = strategy.make<muster::Variable>(torch::zeros({kRows, 1}), muster::VariableOptions{.name = "rows"});
  auto large = strategy.make<muster::Variable>(muster::InitialValue::constant({ballast * 1024 + 6, 256}, 0),
                                               muster::VariableOptions{.name = "large"});
  const auto change_all = muster::function([&] { large.assign_add(torch::ones({1})); });
  const auto step = muster::function([&](at::Tensor row) {
    counter.assign_add(torch::ones({}, torch::kLong));
    table.assign_add(torch::ones({6}));
    muster::scatter(rows, muster::Scatter::kAdd, row, torch::ones({1, 1}));
  });
  int64_t scheduled = 0;
  std::optional<muster::Checkpoints> checkpoints;
  if (!directory.empty()) {
    checkpoints.emplace(strategy,
                        muster::CheckpointsOptions{.directory = directory,
                                                   .incremental = muster::IncrementalOptions{.least_bytes = 0}});
    scheduled = checkpoints->restore().value_or(0);
    std::cout << "restored " << scheduled << " counted " << counter.value().item<int64_t>() << " table "
              << table.value().sum().item<int64_t>() << " rows " << rows.value().sum().item<int64_t>() << std::endl;
  }
  muster::ClusterCoordinator coordinator(strategy);

  while (!input_has_ended()) {
    for (int i = 0; i < kStepsPerRound; ++i) coordinator.schedule(step, torch::tensor({(scheduled + i) * 7 % kRows}));
    if (ballast > 0) coordinator.schedule(change_all);
    scheduled += kStepsPerRound;
    coordinator.join();
    if (checkpoints && ballast > 0) checkpoints->save_async(scheduled);
    if (checkpoints && ballast == 0) checkpoints->save(scheduled);
    std::cout << "scheduled " << scheduled << " workers " << coordinator.workers_up() << std::endl;
  }
  std::cout << "scheduled " << scheduled << " counted " << counter.value().item<int64_t>() << " failures "
            << coordinator.metrics().worker_failures << " repeated " << coordinator.metrics().repeated_closures
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto number = [&](const char* name, int without) {
      const std::string given = flag(argc, argv, name);
      return given.empty() ? without : std::stoi(given);
    };
    const std::string directory = flag(argc, argv, "--directory");
    const muster::ParameterServerStrategy strategy(
        muster::resolver_from_flags(argc, argv),
        {.partitioner = muster::FixedShardsPartitioner{.num_shards = number("--parts", 1)}});
    if (const int epochs = number("--fit", 0); epochs > 0) return fit_with_backup(strategy, epochs, directory);
    count(strategy, directory, number("--ballast", 0));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
