// A wide & deep model of clicks, from CSV files, on parameter servers: the wide part remembers pairs of words, the deep
// part learns from what words and numbers have in common. The log is made up, so that the best possible is known.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

namespace {

constexpr int64_t kCities = 20, kDevices = 5;

// Writes a log, and returns how often who knows the truth foretells whether there was a click.
double write_log(const std::string& path, int rows, unsigned seed) {
  std::mt19937 truth(1), random(seed);
  std::vector<double> of_pair;  // each city has a taste of its own for each device
  for (int i = 0; i < kCities * kDevices; ++i) of_pair.push_back(std::normal_distribution<double>(0, 2)(truth));
  std::ofstream out(path);
  out << "city,device,age,hour,clicked\n";
  double best = 0;
  for (int row = 0; row < rows; ++row) {
    const auto city = static_cast<int64_t>(random() % kCities), device = static_cast<int64_t>(random() % kDevices);
    const auto age = static_cast<int>(18 + random() % 60), hour = static_cast<int>(random() % 24);
    const double logit =
        of_pair[static_cast<size_t>(city * kDevices + device)] + 3 * std::cos(2 * M_PI * hour / 24) + (age - 48) / 15.0;
    const double chance = 1 / (1 + std::exp(-logit));
    best += std::max(chance, 1 - chance) / rows;
    const bool clicked = std::uniform_real_distribution<double>()(random) < chance;
    out << "city" << city << ",device" << device << ',' << age << ',' << hour << ',' << clicked << '\n';
  }
  return best;
}

struct WideAndDeepImpl : torch::nn::Module {
  WideAndDeepImpl() {
    pairs = register_module("wide",
                            muster::nn::Embedding({.rows = (kCities + 1) * (kDevices + 1), .dim = 1, .name = "wide"}));
    cities = register_module("cities", muster::nn::Embedding({.rows = kCities + 1, .dim = 4, .name = "cities"}));
    hours = register_module("hours", muster::nn::Embedding({.rows = 24, .dim = 4, .name = "hours"}));
    deep = register_module(
        "deep", torch::nn::Sequential(torch::nn::Linear(9, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1)));
  }
  torch::Tensor forward(const muster::Features& row) {
    const torch::Tensor wide = pairs->forward(row["city"] * (kDevices + 1) + row["device"]);
    const torch::Tensor known =
        torch::cat({cities->forward(row["city"]), hours->forward(row["hour"]), row["age"].unsqueeze(1)}, 1);
    return (wide + deep->forward(known)).squeeze(1);
  }

  muster::nn::Embedding pairs{nullptr}, cities{nullptr}, hours{nullptr};
  torch::nn::Sequential deep{nullptr};
};
TORCH_MODULE(WideAndDeep);

}  // namespace

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / ("muster-clicks-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  for (unsigned part = 0; part < 4; ++part)
    write_log(folder + "/train-" + std::to_string(part) + ".csv", 5'000, part + 2);
  const double best = write_log(folder + "/test.csv", 5'000, 99);

  // What the files have to say about their columns.
  const muster::Dataset some = muster::Dataset::csv(folder + "/train-*.csv");
  auto learned = [&](std::unique_ptr<muster::Adapter> adapter, const std::string& column) {
    some.adapt(*adapter, column);
    return adapter->finish();
  };
  const auto city = learned(muster::string_lookup_adapter(), "city"),
             device = learned(muster::string_lookup_adapter(), "device"),
             age = learned(muster::normalization_adapter({.axis = {}}), "age");
  auto rows = [&](const std::string& files) {
    return muster::Dataset::csv(folder + "/" + files)
        .preprocess("city", city)
        .preprocess("device", device)
        .preprocess("age", age)
        .label("clicked");
  };

  muster::InProcessCluster cluster({.workers = 2, .ps = 2, .worker = {.data = {folder}}});
  muster::ParameterServerStrategy strategy(cluster.resolver());
  torch::manual_seed(1);
  auto model = muster::compile(
      strategy.make<WideAndDeep>(),
      {.optimizer = muster::Adagrad({.learning_rate = 0.1, .all = {.groups = {{.names = "^wide", .rate_factor = 4}}}}),
       .loss = muster::binary_cross_entropy_with_logits,
       .metrics = {muster::Accuracy(), muster::Auc()}});
  model.fit(rows("train-*.csv").shuffle(5'000).batch(128), {.epochs = 4, .verbose = 2});
  const double reached = model.evaluate(rows("test.csv").batch(256)).at("accuracy");
  std::cout << "foretells " << 100 * reached << " % of views that it has not seen; who knows the truth, " << 100 * best
            << " %\n";
  std::filesystem::remove_all(folder);
  return reached > best - 0.02 ? 0 : 1;
}
