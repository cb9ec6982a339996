// A language model of words: text becomes numbers by a vocabulary that is learned from it, and an LSTM says which word
// comes next, on two devices in step. The text is made up, so that the best that any model can do is known.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

namespace {

struct Animal {
  const char *name, *does;
};
// The last word of a sentence depends on its second one, and not on what is between.
constexpr Animal kAnimals[] = {{"cat", "purrs"}, {"cats", "purr"},  {"dog", "barks"},
                               {"dogs", "bark"}, {"bird", "sings"}, {"birds", "sing"}};
constexpr const char* kPlaces[] = {"river", "house", "garden"};
constexpr int kWords = 6;

void write_sentences(const std::string& path, int count) {
  std::mt19937 random(1);
  std::ofstream out(path);
  for (int i = 0; i < count; ++i) {
    const Animal& animal = kAnimals[random() % std::size(kAnimals)];
    out << "The " << animal.name << " near the " << kPlaces[random() % std::size(kPlaces)] << " " << animal.does
        << ".\n";
  }
}

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(int64_t words) : embedding(words, 16), lstm(options(16, 32)), next(32, words) {
    register_module("embedding", embedding);
    register_module("lstm", lstm);
    register_module("next", next);
  }
  static torch::nn::LSTMOptions options(int64_t in, int64_t out) {
    return torch::nn::LSTMOptions(in, out).batch_first(true);
  }
  // A score for every word, at every place: [sentences, places] -> [sentences, places, words].
  torch::Tensor forward(const torch::Tensor& numbers) {
    return next->forward(std::get<0>(lstm->forward(embedding->forward(numbers))));
  }

  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::Linear next;
};
TORCH_MODULE(LanguageModel);

}  // namespace

int main() {
  muster::set_local_options({.devices = {.cpus = 2}});  // before they are used
  const std::string file = std::filesystem::temp_directory_path() / ("muster-sentences-" + std::to_string(getpid()));
  write_sentences(file, 2'048);
  const muster::Dataset lines = muster::Dataset::text_lines(file).parse_csv(
      {.columns = {{.name = "text", .type = muster::CsvColumn::Type::kString}}, .separator = '\t'});
  auto adapter = muster::text_vectorization_adapter({.output_sequence_length = kWords});
  lines.adapt(*adapter, "text");
  const auto numbers_of = adapter->finish();
  const muster::Column vocabulary = numbers_of->state().values.at("vocabulary");
  auto word = [&](int64_t number) {  // 0 fills up, and 1 is a word that it does not know
    return number < 2 ? "?" : std::string(vocabulary.strings()[static_cast<size_t>(number - 2)]);
  };

  muster::MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  torch::manual_seed(1);
  auto model = muster::compile(
      strategy.make<LanguageModel>(static_cast<int64_t>(vocabulary.strings().count()) + 2),
      {.optimizer = muster::Adam({.learning_rate = 0.02}), .loss = muster::sparse_categorical_cross_entropy});
  // From each word, and those before it, the next one.
  const auto sentences = lines.preprocess("text", numbers_of).map([](torch::Tensor text) {
    return std::tuple(text.slice(0, 0, kWords - 1), text.slice(0, 1, kWords));
  });
  model.fit(sentences.shuffle(2'048, 1).batch(64), {.epochs = 8, .verbose = 2});
  const double reached = std::exp(model.evaluate(sentences.batch(64)).at("loss"));
  std::filesystem::remove(file);

  // Two of the five words that are to be foretold are free: the animal and the place.
  const double best = std::exp((std::log(std::size(kAnimals)) + std::log(std::size(kPlaces))) / (kWords - 1));
  std::cout << "perplexity " << reached << ", and the best possible is " << best << "\n";
  bool all_right = true;
  for (const Animal& animal : kAnimals) {
    const std::string begun = "the " + std::string(animal.name) + " near the garden";
    const torch::Tensor numbers = (*numbers_of)(muster::Column(muster::Strings(begun))).tensor();
    const torch::Tensor scores =
        model.predict(std::vector<torch::Tensor>{numbers.slice(0, 0, kWords - 1).unsqueeze(0)});
    const std::string guess = word(scores[0][kWords - 2].argmax().item<int64_t>());
    std::cout << begun << " … " << guess << "\n";
    all_right = all_right && guess == animal.does;
  }
  return all_right && reached < 1.05 * best ? 0 : 1;
}
