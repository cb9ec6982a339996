// Saving and restoring 1 GiB of variables that live on 2 parameter server processes, beside what the disk does by
// itself, and what that costs a training that goes on meanwhile.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/trace/rows.h"
#include "muster/train/checkpoints.h"

namespace muster::bench {
namespace {

constexpr int64_t kSavedVariables = 16, kSavedRows = int64_t{1} << 20, kSavedWidth = 16;  // 64 MiB each
constexpr double kGigabytes = 4.0 * kSavedVariables * kSavedRows * kSavedWidth / 1e9;

class CheckpointFolder {
 public:
  CheckpointFolder()
      : path_(std::filesystem::temp_directory_path() / str_cat("muster-bench-", ::getpid(), "-checkpoints")) {
    std::filesystem::create_directories(path_);
  }
  ~CheckpointFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

// As many bytes in pieces of a MiB, which are on the disk in the end.
double plain_write(const std::string& path) {
  std::string block(1 << 20, '\0');
  std::mt19937 random;
  std::generate(block.begin(), block.end(), [&] { return static_cast<char>(random()); });
  const double took = seconds([&] {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool good = file >= 0;
    for (int64_t left = 4 * kSavedVariables * kSavedRows * kSavedWidth; left > 0 && good; left -= 1 << 20) {
      good = ::write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size());
    }
    if (!good || ::fsync(file) != 0) throw internal("cannot write ", path);
    ::close(file);
  });
  std::filesystem::remove(path);
  return kGigabytes / took;
}

// The servers, the variables and where they are saved.
class SavedJob {
 public:
  SavedJob()
      : servers_(1, 2, /*start=*/true, {"--storage", folder_.path()}),
        strategy_(SimpleClusterResolver(servers_.spec(), {.rpc_layer = "grpc"})),
        checkpoints_(strategy_, {.directory = folder_.path() + "/saved", .keep = 100}) {
    for (int64_t i = 0; i < kSavedVariables; ++i) {
      variables_.push_back(strategy_.make<Variable>(InitialValue::uniform({kSavedRows, kSavedWidth}, 0, 1)));
    }
  }

  std::string folder() const { return folder_.path(); }
  ParameterServerStrategy& strategy() { return strategy_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  std::vector<Variable>& variables() { return variables_; }
  void save() { checkpoints_.save(++saved_); }
  // To remove a file takes longer than to write it on some disks, and is not timed for `disk` either.
  void remove_older() const { CheckpointDirectory(folder_.path() + "/saved").keep(1); }
  void save_beside() {
    checkpoints_.save_async(++saved_);
    checkpoints_.wait();
    remove_older();
  }
  double memory_of_ps() const {
    return resident_memory(servers_.pid({"ps", 0})) + resident_memory(servers_.pid({"ps", 1}));
  }

 private:
  CheckpointFolder folder_;
  ServerProcesses servers_;
  ParameterServerStrategy strategy_;
  Checkpoints checkpoints_;
  std::vector<Variable> variables_;
  int64_t saved_ = 0;
};

// Saves of which each is on top of the one before, which goes.
void save_changed_rows(Bench& bench, SavedJob& job) {
  constexpr int kSaves = 9;
  Checkpoints checkpoints(job.strategy(), {.directory = job.folder() + "/changed",
                                           .keep = 1,
                                           .incremental = IncrementalOptions{.most_differences = 2 * kSaves}});
  auto change = function([&] {
    const torch::Tensor ids = torch::randint(0, kSavedRows, {kSavedRows / 100}, torch::kLong);
    for (Variable& table : job.variables())
      scatter(table, Scatter::kAdd, ids, torch::ones({kSavedRows / 100, kSavedWidth}));
  });
  ClusterCoordinator coordinator(job.strategy());
  checkpoints.save(0);
  std::vector<double> took;
  for (int64_t step = 1; step <= kSaves; ++step) {
    coordinator.schedule(change);
    coordinator.join();
    took.push_back(seconds([&] { checkpoints.save(step); }));
  }
  std::sort(took.begin(), took.end());
  bench.once({"save_with_a_percent_changed", "s"}, took[kSaves / 2]);
  bench.once({"restore_after_nine_such", "s"}, seconds([&] { checkpoints.restore(); }));
}

void save_and_restore(Bench& bench) {
  SavedJob job;
  const double before = peak_memory();  // of this process, which may not have had a checkpoint in it ever
  job.save();
  if (job.checkpoints().restore() != 1) throw internal("checkpoint: nothing was restored");
  bench.in_turn({{{"disk", "GB/s"}, [&] { return plain_write(job.folder() + "/plain"); }},
                 {{"save", "GB/s"},
                  [&] {
                    const double took = seconds([&] { job.save(); });
                    job.remove_older();
                    return kGigabytes / took;
                  }},
                 {{"restore", "GB/s"}, [&] { return kGigabytes / seconds([&] { job.checkpoints().restore(); }); }}});
  bench.once({"chief_memory_growth", "MiB"}, peak_memory() - before);
  save_changed_rows(bench, job);
}

// Steps of `step(i)` while nothing else happens and while a checkpoint is saved, in turns, since machines have better
// and worse seconds. What a save costs is measured against the turns before and after it; the middle one of several.
template <class Step>
void train_and_save(Bench& bench, const std::string& kind, SavedJob& job, const Step& step) {
  constexpr int kSaves = 5, kBurst = 8;
  constexpr double kSeconds = 1.5;
  ClusterCoordinator coordinator(job.strategy());
  int64_t steps = 0;
  const auto burst = [&] {
    for (int i = 0; i < kBurst; ++i) step(coordinator, steps++);
    coordinator.join();
  };
  const auto steps_per_second = [&](const auto& goes_on) {
    const int64_t first = steps;
    const auto begin = std::chrono::steady_clock::now();
    do burst();
    while (goes_on(since(begin)));
    return static_cast<double>(steps - first) / since(begin);
  };
  const auto undisturbed = [&] { return steps_per_second([](double time) { return time < kSeconds; }); };
  const auto while_saving = [&] {
    std::future<void> saved = std::async(std::launch::async, [&] { job.save_beside(); });
    const double rate =
        steps_per_second([&](double) { return saved.wait_for(std::chrono::seconds(0)) != std::future_status::ready; });
    saved.get();
    return rate;
  };
  for (int64_t i = 0; i < kSavedVariables; i += kBurst) burst();
  const double memory = job.memory_of_ps();
  std::atomic<double> most = memory;
  std::jthread watch([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      most = std::max(most.load(), job.memory_of_ps());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  std::vector<double> alone{undisturbed()}, lost;
  for (int i = 0; i < kSaves; ++i) {
    const double disturbed = while_saving();
    alone.push_back(undisturbed());
    lost.push_back(1 - disturbed / ((alone[i] + alone[i + 1]) / 2));
  }
  watch.request_stop();
  watch.join();
  std::sort(lost.begin(), lost.end());
  bench.once({kind + "_steps", "steps/s"}, *std::max_element(alone.begin(), alone.end()));
  bench.once({kind + "_steps_lost_while_saving", "%"}, 100 * lost[kSaves / 2]);
  bench.once({kind + "_ps_memory_growth_while_saving", "MiB"}, most - memory);
}

void save_while_training(Bench& bench) {
  SavedJob job;
  std::vector<Variable>& tables = job.variables();
  auto rows = function([&] {
    const torch::Tensor ids = torch::randint(0, kSavedRows, {256}, torch::kLong);
    for (Variable& table : tables) scatter(table, Scatter::kAdd, ids, torch::ones({256, kSavedWidth}));
  });
  train_and_save(bench, "rows", job, [&](ClusterCoordinator& coordinator, int64_t) { coordinator.schedule(rows); });
  using Add = std::function<void()>;
  std::vector<Function<Add>> adds;
  for (Variable& table : tables) {
    adds.push_back(function(Add([&table] { table.assign_add(torch::ones({kSavedRows, kSavedWidth})); })));
  }
  train_and_save(bench, "dense", job, [&](ClusterCoordinator& coordinator, int64_t i) {
    coordinator.schedule(adds[static_cast<size_t>(i % kSavedVariables)]);
  });
}

}  // namespace

void checkpoint(const Part& part, Bench& bench) {
  part.name == "processes" ? save_and_restore(bench) : save_while_training(bench);
}

}  // namespace muster::bench
