// The same model on whatever cluster TF_CONFIG describes: Keras-style training with a table in two parts.
//   click_model --write                                writes the files to train on, here
//   muster run --workers 2 --ps 2 --data . --storage . click_model
//   … click_model --on-demand                          the table has only the rows that were looked up
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>
#include <random>

struct ClickModelImpl : torch::nn::Module {
  explicit ClickModelImpl(bool on_demand) {
    ids = register_module("ids", muster::nn::Embedding({.rows = 1'000'000, .dim = 16, .on_demand = on_demand}));
    top = register_module(
        "top", torch::nn::Sequential(torch::nn::Linear(26 * 16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return top->forward(ids->forward(x).flatten(1)).squeeze(1); }

  muster::nn::Embedding ids{nullptr};
  torch::nn::Sequential top{nullptr};
};
TORCH_MODULE(ClickModel);

// Each of 26 columns has 50 ids, of which the even ones are clicked rather than the odd ones.
void write_files() {
  std::mt19937_64 random(1);
  for (int file = 0; file < 8; ++file) {
    muster::TfRecordWriter out("clicks-" + std::to_string(file) + ".tfrecord");
    for (int row = 0; row < 2'000; ++row) {
      std::vector<int64_t> ids;
      int even = 0;
      for (int64_t column = 0; column < 26; ++column) {
        ids.push_back(column * 38'000 + static_cast<int64_t>(random() % 50));
        even += ids.back() % 2 == 0 ? 1 : 0;
      }
      out.write(muster::ExampleBuilder().int64s("ids", ids).floats("click", {even > 13 ? 1.F : 0.F}).serialize());
    }
    out.close();
  }
}

int train(bool on_demand) {
  muster::ParameterServerStrategy strategy(muster::TfConfigClusterResolver(),
                                           {.partitioner = muster::FixedShardsPartitioner{.num_shards = 2}});
  auto model =
      muster::compile(strategy.make<ClickModel>(on_demand), {.optimizer = muster::Adagrad({.learning_rate = 0.05}),
                                                             .loss = muster::binary_cross_entropy_with_logits,
                                                             .metrics = {muster::Auc()},
                                                             .steps_per_execution = 10});
  auto history = model.fit(
      [](muster::InputContext input) {
        return muster::Dataset::tfrecords("clicks-*.tfrecord")
            .shard(input)
            .shuffle(100'000)
            .batch(256)
            .parse({{"ids", muster::int64s(26)}, {"click", muster::floats()}})
            .repeat();
      },
      {.epochs = 5,
       .steps_per_epoch = 100,
       .callbacks = {muster::ModelCheckpoint({.directory = "checkpoints"}),
                     muster::TensorBoard({.directory = "logs"})}});
  std::cout << "auc " << history["auc"].back() << "\n";
  return history["auc"].back() > 0.9 ? 0 : 1;
}

int main(int argc, char** argv) {
  try {
    const std::string word = argc > 1 ? argv[1] : "";
    if (word.empty() || word == "--on-demand") return train(/*on_demand=*/!word.empty());
    if (word != "--write") throw std::invalid_argument("expected --write, --on-demand or nothing");
    write_files();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "click_model: " << error.what() << "\n";
    return 1;
  }
}
