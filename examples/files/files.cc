// From files to batches: writes a click log as CSV and as TFRecords, and trains on both.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "muster/muster.h"

namespace {

// Who clicks: those from the south, and the older the rather.
void write_click_log(const std::filesystem::path& folder) {
  std::mt19937 random(1);
  const std::vector<std::string> cities{"oslo", "turin", "lyon", "cadiz"};
  for (int part = 0; part < 4; ++part) {
    std::ofstream csv(folder / ("clicks-" + std::to_string(part) + ".csv"));
    muster::TfRecordWriter records((folder / ("clicks-" + std::to_string(part) + ".tfrecord")).string());
    csv << "city,age,clicked\n";
    for (int row = 0; row < 500; ++row) {
      const size_t city = random() % cities.size();
      const auto age = static_cast<int64_t>(18 + random() % 60);
      const int64_t clicked = (city % 2 == 1) != (age > 60) ? 1 : 0;
      csv << cities[city] << ',' << age << ',' << clicked << '\n';
      records.write(muster::ExampleBuilder()
                        .strings("city", {cities[city]})
                        .int64s("age", {age})
                        .int64s("clicked", {clicked})
                        .serialize());
    }
    records.close();
  }
}

// Rows with the columns city (its number), age and clicked become batches; prints how many are foretold.
void train(const std::string& what, const muster::Dataset& rows) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(5, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  const muster::Adam adam(muster::adopt(net).trainable(), {.learning_rate = 0.01});
  auto step = muster::function([&](muster::Iterator& it) {
    auto [features, clicked] = it.next_labelled();
    const auto city = (features["city"].unsqueeze(1) == torch::arange(1, 5)).to(torch::kFloat);
    const auto age = (features["age"].to(torch::kFloat) - 48) / 18;
    const auto guess = net->forward(torch::cat({city, age.unsqueeze(1)}, 1)).squeeze(1);
    const auto label = clicked.to(torch::kFloat);
    adam.minimize(torch::binary_cross_entropy_with_logits(guess, label));
    return ((guess > 0) == (label > 0)).to(torch::kFloat).mean();
  });

  muster::Iterator batches = rows.label("clicked").shuffle(2000, 7).repeat().batch(100).prefetch(2).iterator();
  float right = 0;
  for (int i = 0; i < 600; ++i) {
    const float of_batch = step(batches).item<float>();
    if (i >= 500) right += of_batch / 100;
  }
  std::cout << what << ": " << static_cast<int>(100 * right + 0.5F) << " % of the clicks are foretold\n";
}

}  // namespace

int main() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("muster-files-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  write_click_log(folder);

  // CSV: the names and types of its columns are in the files. The numbers of the cities are learned from them.
  const muster::Dataset lines = muster::Dataset::csv({(folder / "*.csv").string()});
  auto cities = muster::string_lookup_adapter();
  lines.adapt(*cities, "city");
  const auto city_numbers = cities->finish();
  train("csv", lines.preprocess("city", city_numbers));

  // TFRecord: what an example has is said here.
  using Kind = muster::ExampleFeature::Kind;
  using Type = muster::ExampleFeature::Type;
  const muster::Dataset records =
      muster::Dataset::tfrecords({(folder / "*.tfrecord").string()}, {.cycle_length = 2})
          .parse_examples({{.name = "city", .kind = Kind::kFixed, .type = Type::kString},
                           {.name = "age", .kind = Kind::kFixed, .type = Type::kInt64},
                           {.name = "clicked", .kind = Kind::kFixed, .type = Type::kInt64}});
  train("tfrecord", records.preprocess("city", city_numbers));

  // Lines of text, read by one of two workers: its files alone.
  const muster::Dataset half =
      muster::Dataset::text_lines({(folder / "*.csv").string()})
          .shard({.num_input_pipelines = 2, .input_pipeline_id = 1}, muster::ShardPolicy::kFile);
  auto words = muster::text_vectorization_adapter({.max_tokens = 100});
  const muster::Dataset columns =
      half.parse_csv({.columns = {{.name = "line", .type = muster::CsvColumn::Type::kString}}, .separator = '\t'});
  columns.adapt(*words, "line");
  int64_t count = 0;
  auto source = columns.preprocess("line", words->finish()).padded_batch(100).iterator();
  for (int batch = 0; batch < 10; ++batch) count += source.next<1>()[0].size(0);
  std::cout << "text: " << count << " lines of half of the files, as numbers of their words\n";

  std::filesystem::remove_all(folder);
}
