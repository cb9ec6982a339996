// A click model: 26 tables of 100,000 rows in 2 parts on 2 parameter server processes, trained by 2 worker processes.
#include <torch/torch.h>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/train/embedding.h"
#include "muster/train/optimizers.h"

namespace muster::bench {

void ctr_embedding(const Part&, Bench& bench) {
  constexpr int64_t kTables = 26, kRows = 100'000, kDim = 16, kBatch = 4096, kBatches = 16;
  constexpr int kSteps = 24;
  ServerProcesses servers(2, 2);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}),
                                   {.partitioner = MinSizePartitioner{.min_shard_bytes = 1 << 20, .max_shards = 2}});
  torch::manual_seed(1);
  std::vector<nn::Embedding> tables;
  std::vector<Variable> variables, dense;
  {
    auto scope = strategy.scope();
    for (int64_t i = 0; i < kTables; ++i) {
      tables.emplace_back(nn::EmbeddingOptions{
          .rows = kRows, .dim = kDim, .name = "table_" + std::to_string(i), .seed = static_cast<uint64_t>(i)});
      variables.push_back(tables.back().table());
    }
    const std::vector<int64_t> sizes{kTables * kDim, 256, 64, 1};
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      dense.emplace_back(torch::randn({sizes[i], sizes[i + 1]}) * 0.05);
      dense.emplace_back(torch::zeros({sizes[i + 1]}));
    }
  }
  variables.insert(variables.end(), dense.begin(), dense.end());
  const Adagrad adagrad(variables, {.learning_rate = 0.05, .initial_accumulator = 0.1, .epsilon = 1e-7});
  ClusterCoordinator coordinator(strategy);
  auto batches = coordinator.create_per_worker_dataset(
      Dataset::tensors({torch::randint(0, kRows, {kBatches, kTables, kBatch}, torch::kLong),
                        (torch::rand({kBatches, kBatch, 1}) < 0.25).to(torch::kFloat)})
          .repeat());
  auto step = function([&](Iterator& it) {
    auto [ids, y] = it.next();
    std::vector<torch::Tensor> rows;
    for (int64_t i = 0; i < kTables; ++i) rows.push_back(tables[i](ids[i]));
    torch::Tensor h = torch::cat(rows, 1);
    for (size_t i = 0; i < dense.size(); i += 2) {
      h = torch::addmm(dense[i + 1], h, dense[i]);
      if (i + 2 < dense.size()) h = torch::relu(h);
    }
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(h, y);
    adagrad.minimize(loss);
    return loss;
  });

  const double first = coordinator.schedule(step, batches).fetch().item<double>();
  auto burst = [&](int steps) {
    for (int i = 0; i < steps; ++i) coordinator.schedule(step, batches);
    coordinator.join();
  };
  burst(4);
  bench.rate({"async_2workers_2ps", "samples/s"}, kSteps * kBatch, [&] { burst(kSteps); });
  if (torch::cuda::is_available()) std::fprintf(stderr, "%s\n", coordinator.report().to_string().c_str());
  check_fell("ctr_embedding", first, coordinator.schedule(step, batches).fetch().item<double>());
}

}  // namespace muster::bench
