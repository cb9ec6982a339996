#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "bench/workloads.h"
#include "muster/data/dataset.h"
#include "muster/data/files/example_builder.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::bench {
namespace {

constexpr int kClicks = 200'000;
constexpr int kClicksPerBatch = 512;
constexpr int kClicksShuffled = 10'000;
constexpr int kClickNumbers = 13, kClickIds = 26;

// A click log, as the peers' data.py writes it.
struct Click {
  float numbers[kClickNumbers];
  int64_t ids[kClickIds];
  float label;
};

void for_each_click(const std::function<void(const Click&)>& use) {
  std::mt19937_64 random(1);
  Click click{};
  for (int row = 0; row < kClicks; ++row) {
    for (float& number : click.numbers) number = static_cast<float>(random() >> 40) * 0x1p-24F;
    for (int64_t& id : click.ids) id = static_cast<int64_t>(random() % 100'000);
    click.label = static_cast<float>(random() & 1);
    use(click);
  }
}

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name)
      : path_((std::filesystem::temp_directory_path() / str_cat("muster-bench-", ::getpid(), "-", name)).string()) {}
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// With its strings, which no program would take.
void drain_clicks(const Dataset& dataset) {
  const std::atomic<bool> closed{false};
  StageTimes times(static_cast<int>(std::thread::hardware_concurrency()));  // as an opened dataset measures itself
  const std::unique_ptr<Source> source =
      open(*dataset.node(), {.runner = local_worker(), .closed = closed, .times = &times});
  int64_t rows = 0;
  while (const std::optional<Columns> batch = source->next()) rows += batch->at(0).sizes()[0];
  if (rows != kClicks) throw internal("a dataset of ", kClicks, " examples gave ", rows);
}

}  // namespace

void data_tfrecord(const Part& part, Bench& bench) {
  const ScratchFile file("clicks.tfrecord");
  TfRecordWriter out(file.path());
  for_each_click([&](const Click& click) {
    out.write(
        ExampleBuilder().floats("d", click.numbers).int64s("c", click.ids).floats("y", {click.label}).serialize());
  });
  out.close();
  using Kind = ExampleFeature::Kind;
  using Type = ExampleFeature::Type;
  const Dataset dataset =
      Dataset::tfrecords({file.path()})
          .shuffle(kClicksShuffled)
          .batch(kClicksPerBatch)
          .parse_examples({{.name = "d", .kind = Kind::kFixed, .type = Type::kFloat, .shape = {kClickNumbers}},
                           {.name = "c", .kind = Kind::kFixed, .type = Type::kInt64, .shape = {kClickIds}},
                           {.name = "y", .kind = Kind::kFixed, .type = Type::kFloat, .shape = {1}}},
                          {.threads = part.threads})
          .prefetch(2);
  bench.rate({part.name, "examples/s"}, kClicks, [&] { drain_clicks(dataset); });
}

void data_csv(const Part& part, Bench& bench) {
  const ScratchFile file("clicks.csv");
  {
    std::ofstream out(file.path());
    std::string line;
    for (int i = 0; i < kClickNumbers; ++i) str_append(line, "d", i, ",");
    for (int i = 0; i < kClickIds; ++i) str_append(line, "c", i, ",");
    out << line << "y\n";
    for_each_click([&](const Click& click) {
      line.clear();
      char text[32];
      for (const float number : click.numbers) {
        std::snprintf(text, sizeof text, "%.6f,", static_cast<double>(number));
        line += text;
      }
      for (const int64_t id : click.ids) str_append(line, "u", id, ",");
      out << line << (click.label != 0 ? "1\n" : "0\n");
    });
  }
  std::vector<CsvColumn> columns;
  for (int i = 0; i < kClickNumbers; ++i) columns.push_back({.name = str_cat("d", i), .type = CsvColumn::Type::kFloat});
  for (int i = 0; i < kClickIds; ++i) columns.push_back({.name = str_cat("c", i), .type = CsvColumn::Type::kString});
  columns.push_back({.name = "y", .type = CsvColumn::Type::kFloat});
  const Dataset dataset = Dataset::csv({file.path()}, {.columns = columns}, {.threads = part.threads})
                              .shuffle(kClicksShuffled)
                              .batch(kClicksPerBatch)
                              .prefetch(2);
  bench.rate({part.name, "examples/s"}, kClicks, [&] { drain_clicks(dataset); });
}

}  // namespace muster::bench
