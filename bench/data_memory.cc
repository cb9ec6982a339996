#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/data/dataset.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::bench {
namespace {

constexpr int64_t kShuffled = 1'000'000;

// How many times their bytes the elements of a dataset take while a shuffle holds all of them.
double shuffled_memory(const Dataset& dataset, double bytes) {
  const std::atomic<bool> closed{false};
  const Dataset shuffled = dataset.shuffle(kShuffled, 1);
  const std::unique_ptr<Source> source = open(*shuffled.node(), {.runner = local_worker(), .closed = closed});
  const double before = resident_memory(::getpid());
  if (!source->next()) throw internal("a dataset of ", kShuffled, " elements gave none");
  return (resident_memory(::getpid()) - before) * 1024 * 1024 / (bytes * kShuffled);
}

Dataset same_rows(int64_t numbers) {
  return Dataset::generator([numbers] {
    return [row = at::arange(numbers, at::kLong), left = kShuffled]() mutable -> std::optional<Element> {
      if (left-- == 0) return std::nullopt;
      return Element{row};
    };
  });
}

}  // namespace

void data_memory(const Part& part, Bench& bench) {
  const Metric metric{str_cat("shuffle_of_", part.name), "times"};
  if (part.name == "numbers") return bench.once(metric, shuffled_memory(Dataset::range(kShuffled), 8));
  if (part.name == "rows") return bench.once(metric, shuffled_memory(same_rows(26), 26 * 8));
  const size_t bytes = part.name == "lines_64" ? 64 : 200;
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / str_cat("muster-bench-", ::getpid(), "-lines");
  std::ofstream out(path);
  for (int64_t i = 0; i < kShuffled; ++i) out << std::string(bytes, 'x') << '\n';
  out.close();
  bench.once(metric, shuffled_memory(Dataset::text_lines({path.string()}), static_cast<double>(bytes)));
  std::filesystem::remove(path);
}

}  // namespace muster::bench
