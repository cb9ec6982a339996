// Workers that read files together, for share_files_test.py: every number in the files is counted on a parameter server
// until there are no more. With --directory D it begins with the newest checkpoint there, position in the files
// included, and saves one after every round. Flags: --files PATTERN --numbers N, which is how many there are.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstring>
#include <iostream>

namespace {

constexpr int kStepsPerRound = 12;

std::string flag(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return "";
}

void share(const muster::ClusterResolver& cluster, const std::string& files, int64_t numbers,
           const std::string& directory) {
  const muster::ParameterServerStrategy strategy(cluster);
  auto counts =
      strategy.make<muster::Variable>(torch::zeros({numbers}, torch::kLong), muster::VariableOptions{.name = "counts"});
  const auto step = muster::function([&](muster::Iterator& it) {
    const torch::Tensor found = it.next<1>()[0];
    counts.assign_add(torch::zeros({numbers}, torch::kLong).index_add(0, found, torch::ones_like(found)));
  });
  muster::Checkpoints checkpoints(strategy, {.directory = directory});
  int64_t scheduled = checkpoints.restore().value_or(0);
  muster::ClusterCoordinator coordinator(strategy);
  auto rows = coordinator.create_per_worker_dataset(
      muster::Dataset::csv({files}).shuffle(50).batch(8).shard({}, muster::ShardPolicy::kDynamic),
      checkpoints.metadata("rows"));
  try {
    while (true) {
      for (int i = 0; i < kStepsPerRound; ++i) coordinator.schedule(step, rows);
      coordinator.join();
      scheduled += kStepsPerRound;
      checkpoints.save(scheduled, {{"rows", coordinator.position(rows)}});
      std::cout << "scheduled " << scheduled << " workers " << coordinator.workers_up() << std::endl;
    }
  } catch (const muster::Error& error) {
    if (error.code() != muster::StatusCode::kOutOfRange) throw;
  }
  const torch::Tensor used = counts.value();
  std::cout << "least " << used.min().item<int64_t>() << " most " << used.max().item<int64_t>() << " in all "
            << used.sum().item<int64_t>() << " failures " << coordinator.metrics().worker_failures << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    share(muster::resolver_from_flags(argc, argv), flag(argc, argv, "--files"),
          std::stoll(flag(argc, argv, "--numbers")), flag(argc, argv, "--directory"));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
