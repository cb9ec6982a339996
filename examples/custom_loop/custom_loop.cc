// A training loop of one's own, on words: each worker has a dataset of its own, two vocabularies make numbers of its
// strings, and what an epoch has reached is collected while the next one already runs.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>
#include <random>

namespace {

constexpr int kEpochs = 4, kStepsPerEpoch = 100;
const std::vector<std::string> kAnimals{"cat", "dog", "horse", "cow", "pig", "goose", "owl"};

// Three animals again and again, and whether there is a bird among them.
muster::ColumnGenerator some_animals(const muster::RegisteredOptions& options) {
  return [random = std::mt19937(std::stoul(options.at("seed")))]() mutable -> std::optional<muster::Columns> {
    muster::Strings animals;
    bool bird = false;
    for (int i = 0; i < 3; ++i) {
      const std::string& animal = kAnimals[random() % kAnimals.size()];
      animals.append(animal);
      bird = bird || animal == "goose" || animal == "owl";
    }
    animals.shape({3});
    return muster::Columns{animals, muster::Strings(bird ? "yes" : "no")};
  };
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("animals", animals);
    register_module("top", top);
  }
  torch::Tensor forward(const torch::Tensor& x) { return top->forward(animals->forward(x).mean(1)).squeeze(1); }

  muster::nn::Embedding animals{muster::nn::EmbeddingOptions{.rows = 8, .dim = 16}};  // the first one is for strangers
  torch::nn::Linear top{16, 1};
};
TORCH_MODULE(Net);

}  // namespace

int main() {
  muster::register_dataset_source("animals", some_animals);  // by name, since it is opened at the workers
  const auto animal_numbers = muster::string_lookup({.vocabulary = kAnimals});
  const auto answer_numbers = muster::string_lookup({.vocabulary = {"no", "yes"}, .num_oov_indices = 0});

  muster::InProcessCluster cluster({.workers = 3, .ps = 2});
  muster::ParameterServerStrategy strategy(cluster.resolver(), {.placement = muster::PsPlacement::kBalancedByBytes});
  torch::manual_seed(1);
  auto net = strategy.make<Net>();
  const muster::Adam adam(net, {.learning_rate = 0.02});

  muster::ClusterCoordinator coordinator(strategy);
  auto batches = coordinator.create_per_worker_dataset([&](muster::InputContext input) {
    const std::string seed = std::to_string(input.input_pipeline_id);
    return muster::Dataset::registered("animals", {{"seed", seed}}, {"animals", "bird"})
        .preprocess("animals", animal_numbers)
        .preprocess("bird", answer_numbers)
        .label("bird")
        .batch(32)
        .prefetch(2);
  });
  auto step = muster::function([&](muster::Iterator& it) {
    auto [features, bird] = it.next_labelled();
    torch::Tensor logits = net->forward(features["animals"]);
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(logits, bird.to(torch::kFloat));
    adam.minimize(loss);
    return torch::stack({loss.detach(), ((logits > 0) == (bird > 0)).to(torch::kFloat).mean()});
  });

  double accuracy = 0;
  std::vector<muster::RemoteValue<torch::Tensor>> before;
  for (int epoch = 0; epoch <= kEpochs; ++epoch) {
    std::vector<muster::RemoteValue<torch::Tensor>> now;
    for (int i = 0; epoch < kEpochs && i < kStepsPerEpoch; ++i) now.push_back(coordinator.schedule(step, batches));
    if (!before.empty()) {  // while the workers are busy with the new ones
      const torch::Tensor means = torch::stack(coordinator.fetch(before)).mean(0);
      accuracy = means[1].item<double>();
      std::cout << "epoch " << epoch << "  loss " << means[0].item<float>() << "  accuracy " << accuracy << "\n";
    }
    before = std::move(now);
  }
  return accuracy == 1 ? 0 : 1;
}
