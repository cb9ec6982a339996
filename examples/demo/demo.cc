// Trains a click model: three workers, two parameter servers, tables in parts, and a worker that dies on the way. The
// log is generated, so the probability of every click is known, and with it the best AUC that any model can reach.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cstring>
#include <iomanip>
#include <iostream>

namespace {

struct Field {
  const char* name;
  int64_t ids;
  double effect;  // how much it decides
};
constexpr Field kFields[] = {{"user", 4000, 0.9}, {"item", 2000, 0.9}, {"shop", 200, 0.6}, {"hour", 24, 0.5}};
constexpr int64_t kNumFields = std::size(kFields), kDim = 8, kBatch = 512;

struct Log {
  torch::Tensor ids;     // int64[n, fields]
  torch::Tensor clicks;  // float32[n]
  torch::Tensor truth;   // the logits that the clicks were drawn from
};

// Every id of every field has an effect of its own; users also like or dislike the hours.
class World {
 public:
  World() {
    for (const Field& field : kFields) effects_.push_back(field.effect * torch::randn({field.ids}));
  }

  Log log(int64_t count) const {
    std::vector<torch::Tensor> ids;
    torch::Tensor logit = torch::full({count}, -0.7);
    for (int64_t f = 0; f < kNumFields; ++f) {
      ids.push_back(torch::randint(kFields[f].ids, {count}, torch::kLong));
      logit = logit + effects_[f].index_select(0, ids.back());
    }
    return {torch::stack(ids, 1), torch::bernoulli(torch::sigmoid(logit)), logit};
  }

 private:
  std::vector<torch::Tensor> effects_;
};

// The probability that a click scores higher than no click.
double auc(const torch::Tensor& scores, const torch::Tensor& clicks) {
  const torch::Tensor in_order = clicks.index_select(0, scores.argsort());
  const torch::Tensor below = (1 - in_order).to(torch::kDouble).cumsum(0);  // no clicks that score lower
  const double clicked = clicks.sum().item<double>(), others = static_cast<double>(clicks.numel()) - clicked;
  return (in_order * below).sum().item<double>() / (clicked * others);
}

class ClickModel {
 public:
  ClickModel() : net_(torch::nn::Linear(kNumFields * kDim, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1)) {
    for (const Field& field : kFields) {
      tables_.emplace_back(muster::nn::EmbeddingOptions{.rows = field.ids, .dim = kDim, .name = field.name});
      variables_.push_back(tables_.back().table());
    }
    for (const muster::Variable& weight : muster::adopt(net_).trainable()) variables_.push_back(weight);
  }

  torch::Tensor operator()(const torch::Tensor& ids) {
    std::vector<torch::Tensor> rows;
    for (int64_t f = 0; f < kNumFields; ++f) rows.push_back(tables_[f](ids.select(1, f)));
    return net_->forward(torch::cat(rows, 1)).squeeze(1);
  }
  const std::vector<muster::Variable>& variables() const { return variables_; }

 private:
  std::vector<muster::nn::Embedding> tables_;
  torch::nn::Sequential net_;
  std::vector<muster::Variable> variables_;
};

int run(int steps) {
  torch::manual_seed(7);
  torch::set_num_threads(1);  // several workers share this machine
  const World world;
  const Log train = world.log(400'000), test = world.log(20'000);
  const double best = auc(test.truth, test.clicks);
  std::cout << "A log of " << train.clicks.numel() << " views, of which " << std::fixed << std::setprecision(1)
            << 100 * train.clicks.mean().item<double>() << " % were clicked. Whoever knows the truth has an AUC of "
            << std::setprecision(4) << best << ".\n"
            << "Three workers and two parameter servers, each a gRPC server in this process; tables in two parts.\n\n";

  muster::InProcessCluster cluster({.workers = 3, .ps = 2});
  muster::ParameterServerStrategy strategy(
      cluster.resolver(), {.partitioner = muster::MinSizePartitioner{.min_shard_bytes = 4 << 10, .max_shards = 2}});
  auto model = strategy.make<ClickModel>();
  auto counted = strategy.make<muster::Variable>(torch::zeros({}, torch::kLong));
  const muster::Adagrad adagrad(model.variables(), {.learning_rate = 0.2, .initial_accumulator = 0.1});

  muster::ClusterCoordinator coordinator(strategy, {.queue_capacity = 32});
  auto batches = coordinator.create_per_worker_dataset([&](const muster::InputContext& input) {
    return muster::Dataset::tensors({train.ids, train.clicks})
        .shard(input)
        .shuffle(20'000)
        .batch(kBatch, true)
        .repeat();
  });
  auto step = muster::function([&](muster::Iterator& it) {
    auto [ids, clicks] = it.next();
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(model(ids), clicks);
    adagrad.minimize(loss);
    counted.assign_add(torch::ones({}, torch::kLong));
    return loss;
  });
  auto predict = muster::function([&](const torch::Tensor& ids) { return model(ids); });
  auto tested = [&] { return auc(coordinator.schedule(predict, test.ids).fetch(), test.clicks); };

  const int dies = steps * 2 / 5, returns = steps * 3 / 5;
  double reached = 0;
  {
    muster::ProgressBar bar({.title = "train", .total = steps});
    muster::RemoteValue<torch::Tensor> loss, shown;
    for (int i = 1; i <= steps; ++i) {
      loss = coordinator.schedule(step, batches);
      if (i == dies) cluster.stop({"worker", 1});
      if (i == returns) cluster.start({"worker", 1});
      if (i % std::max(1, steps / 10) == 0) {
        reached = tested();
        shown = loss;
      }
      if (i % 10 != 0 && i != steps) continue;
      std::ostringstream note;
      note << std::fixed;
      if (shown.ready()) note << "loss " << std::setprecision(3) << shown.fetch().item<double>() << "  ";
      note << "AUC " << std::setprecision(4) << reached << "  " << coordinator.workers_up() << " of 3 workers";
      bar.update(i, note.str());
    }
    coordinator.join();
  }

  reached = tested();
  const auto count = counted.value().item<int64_t>();
  std::cout << "\nWorker 1 was killed after step " << dies << " and started again after step " << returns << ".\n"
            << steps << " steps were scheduled and " << count
            << " counted on the parameter server: " << (count >= steps ? "none was lost.\n" : "SOME WERE LOST.\n")
            << "AUC " << std::setprecision(4) << reached << " on views that it has never seen; the best possible is "
            << best << ".\n"
            << "Next: examples/task/run   # the same kind of job as six processes\n";
  return count >= steps && reached > best - 0.02 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 3000;
  if (argc == 3 && std::strcmp(argv[1], "--steps") == 0) steps = std::atoi(argv[2]);
  if ((argc != 1 && argc != 3) || steps < 10) {
    std::cerr << "usage: demo [--steps N]\n  --steps N    how long to train (3000, at least 10)\n";
    return 2;
  }
  try {
    return run(steps);
  } catch (const std::exception& error) {
    std::cerr << "demo: " << error.what() << "\n";
    return 1;
  }
}
