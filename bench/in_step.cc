// Processes that compute in step: what a sum over all costs, and a training step. The first one measures; the others do
// what the first is about to do.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "bench/server_processes.h"
#include "bench/training.h"
#include "bench/workloads.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/data/dataset.h"
#include "muster/distribute/multi_worker_mirrored_strategy.h"
#include "muster/fit/tensorboard/summary_writer.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/train/optimizers.h"

namespace muster::bench {
namespace {

constexpr int kCalls = 300;
constexpr int64_t kLarge = 25'000'000;  // floats

MultiWorkerMirroredStrategy join(const ClusterSpec& spec, int index) {
  return MultiWorkerMirroredStrategy(SimpleClusterResolver(spec, {.task_type = "worker", .task_index = index}));
}

// What all do, by number.
using Works = std::vector<std::function<void()>>;

int64_t tell(const Strategy& strategy, int64_t number) {
  return strategy.reduce(ReduceOp::kSum, PerReplica<torch::Tensor>{{torch::tensor(number)}}).item<int64_t>();
}

void follow(const Strategy& strategy, const Works& works) {
  while (true) {
    const int64_t number = tell(strategy, 0);
    if (number == 0) return;
    works.at(static_cast<size_t>(number) - 1)();
  }
}

std::function<void()> lead(const Strategy& strategy, const Works& works, size_t number) {
  return [=] {
    tell(strategy, static_cast<int64_t>(number) + 1);
    works[number]();
  };
}

// ---- Sums
Works sums(const Strategy& strategy) {
  auto same = function([](const torch::Tensor& x) { return x; });
  // The factor keeps sums of sums finite.
  const double share = 1.0 / strategy.num_replicas_in_sync();
  auto shared = [=](const torch::Tensor& x) {
    return strategy.reduce(ReduceOp::kSum, strategy.run(same, x)).mul(share);
  };
  auto whole = function([=](const torch::Tensor& x) { return strategy.reduce(ReduceOp::kSum, strategy.run(same, x)); });
  auto once = function(shared);
  auto often = function([=](const torch::Tensor& x) {
    return repeat(kCalls, [=](const torch::Tensor&, const torch::Tensor& state) { return shared(state); }, x);
  });
  const torch::Tensor large = torch::ones({kLarge}), small = torch::ones({256});
  if (whole(large)[0].item<float>() != static_cast<float>(strategy.num_replicas_in_sync())) {
    throw internal("allreduce: wrong sum");
  }
  once(small);
  often(small);
  return {[=] { whole(large); },
          [=] {
            for (int i = 0; i < kCalls; ++i) once(small);
          },
          [=] { often(small); }};
}

// ---- Training
struct Trained {
  Trained(const Strategy& s, int index)
      : strategy(s),
        pool(make_pool()),
        net(s.make<torch::nn::Sequential>(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10))),
        sgd(net, {.learning_rate = kLearningRate}),
        batches(s.distribute([&](const InputContext&) {
          return Dataset::tensors({pool.x.roll(index, 0), pool.y.roll(index, 0)}).repeat();
        })) {}

  double loss() {
    auto of = function([this](const torch::Tensor& x, const torch::Tensor& y) { return loss_of(net, x, y); });
    return Batches(pool).mean([&](const torch::Tensor& x, const torch::Tensor& y) {
      return of(x.contiguous(), y.contiguous()).item<double>();
    });
  }
  Works works() {
    auto step = function([this](Iterator& it) {
      auto [x, y] = it.next();
      sgd.minimize(loss_of(net, x, y));
    });
    auto ten = function([=, this](Iterator& it) { repeat(10, [&](at::Tensor) { strategy.run(step, it); }); });
    auto one_by_one = [=, this] {
      for (int i = 0; i < kCalls; ++i) strategy.run(step, batches);
    };
    auto ten_by_ten = [=, this] {
      for (int i = 0; i < kCalls / 10; ++i) ten(batches);
    };
    strategy.run(step, batches);
    ten(batches);
    return {one_by_one, ten_by_ten};
  }

  Strategy strategy;
  Pool pool;
  torch::nn::Sequential net;
  Sgd sgd;
  Iterator batches;
};

// ---- Sums beside the backward pass
// A net whose gradients are several packs, each of which takes a while to make.
struct DeepNet {
  static constexpr int64_t kWidth = 1024;
  static constexpr int kLayers = 8;

  explicit DeepNet(const Strategy& s) : strategy(s), net(s.make<torch::nn::Sequential>(layers())), sgd(net, {}) {}

  static torch::nn::Sequential layers() {
    torch::nn::Sequential made;
    for (int i = 0; i < kLayers; ++i) {
      made->push_back(torch::nn::Linear(kWidth, kWidth));
      made->push_back(torch::nn::ReLU());
    }
    return made;
  }
  // A step, with a profile if there is one to fill.
  std::function<void(Profile*)> step() {
    auto replica = function([this](const at::Tensor& x) { sgd.minimize(net->forward(x).square().mean()); });
    auto once = function([=, this](const at::Tensor& x) { strategy.run(replica, x); });
    return [once, x = torch::ones({128, kWidth})](Profile* profile) { once.run({.profile = profile}, x); };
  }

  Strategy strategy;
  torch::nn::Sequential net;
  Sgd sgd;
};

// The part of the sums' time in which an op of the net runs.
double share_beside_ops(const std::vector<Profile::Event>& events) {
  std::vector<std::pair<Profile::Clock::time_point, Profile::Clock::time_point>> ops;  // after each other
  for (const Profile::Event& event : events) {
    if (event.device != Profile::kOtherTasks && event.op.starts_with("aten::"))
      ops.emplace_back(event.begin, event.end);
  }
  std::chrono::nanoseconds all{}, beside{};
  for (const Profile::Event& sum : events) {
    if (sum.device != Profile::kOtherTasks) continue;
    all += sum.end - sum.begin;
    for (const auto& [begin, end] : ops) {
      const auto both = std::min(end, sum.end) - std::max(begin, sum.begin);
      beside += std::max<std::chrono::nanoseconds>(both, std::chrono::nanoseconds(0));
    }
  }
  return static_cast<double>(beside.count()) / static_cast<double>(std::max<int64_t>(all.count(), 1));
}

// This process and others.
class Group {
 public:
  Group(int processes, const std::string& workload)
      : addresses_(processes, 0, /*start=*/false),
        others_(start_others(addresses_.spec(), processes, workload)),
        strategy(join(addresses_.spec(), 0)) {}
  // Tells the others.
  void end() const {
    tell(strategy, 0);
    for (const pid_t other : others_) wait_for(other);
  }

 private:
  static std::vector<pid_t> start_others(const ClusterSpec& spec, int processes, const std::string& workload) {
    std::vector<pid_t> others;
    for (int i = 1; i < processes; ++i) {
      others.push_back(start_self(
          {"in-step-member", "--cluster", spec.to_json(), "--index", std::to_string(i), "--workload", workload}));
    }
    return others;
  }

  ServerProcesses addresses_;  // nothing else of them
  const std::vector<pid_t> others_;

 public:
  const Strategy strategy;
};

// Between processes of a machine tensors go from memory to memory; the part `network` has them sent. What the names of
// its figures end with.
std::string choose_way(const Part& part) {
  if (part.name != "network") return "";
  ::setenv("MUSTER_NEAR_MEMORY", "off", /*overwrite=*/1);
  return "_network";
}

}  // namespace

void in_step_member(const ClusterSpec& spec, int index, const std::string& workload) {
  torch::set_num_threads(1);
  const Strategy strategy = join(spec, index);
  if (workload == "allreduce") return follow(strategy, sums(strategy));
  if (workload == "overlap") {
    DeepNet net(strategy);
    return follow(strategy, {[step = net.step()] { step(nullptr); }});
  }
  Trained trained(strategy, index);
  follow(strategy, trained.works());
}

void allreduce(const Part& part, Bench& bench) {
  const std::string suffix = choose_way(part);
  const Group group(2, "allreduce");
  const Strategy& strategy = group.strategy;
  const Works works = sums(strategy);
  bench.most({"algbw_100MB_ring" + suffix, "GB/s"}, [&] { return 0.1 / seconds(lead(strategy, works, 0)); });
  bench.least({"latency_1KB_per_call" + suffix, "us"},
              [&] { return seconds(lead(strategy, works, 1)) / kCalls * 1e6; });
  bench.least({"latency_1KB_in_graph" + suffix, "us"},
              [&] { return seconds(lead(strategy, works, 2)) / kCalls * 1e6; });
  group.end();
}

// What a large sum takes, by what two processes need for one: each of them sends and gets 2(n-1) messages, which have
// 2(n-1)/n of its bytes.
struct TimeOfSum {
  double message_us, bytes_us;  // one message, however short; as many bytes as the tensor has

  static TimeOfSum by_two(double large_us, double small_us) {
    return {.message_us = small_us / 2, .bytes_us = large_us - small_us};
  }
  double of(int processes) const { return 2.0 * (processes - 1) * (message_us + bytes_us / processes); }
};

// MUSTER_CURVES=DIR gets what `muster plot DIR` draws: what was measured and what was predicted, by processes.
class Curves {
 public:
  explicit Curves(const std::string& suffix)
      : tag_(suffix.empty() ? "100 MB from memory to memory, ms" : "100 MB over sockets, ms") {
    const char* directory = std::getenv("MUSTER_CURVES");
    if (directory == nullptr) return;
    measured_.emplace(str_cat(directory, "/measured"));
    predicted_.emplace(str_cat(directory, "/predicted"));
  }
  void add(int processes, double measured_us, double predicted_us) {
    if (!measured_) return;
    measured_->scalar(tag_, measured_us / 1e3, processes);
    predicted_->scalar(tag_, predicted_us / 1e3, processes);
  }

 private:
  const std::string tag_;
  std::optional<SummaryWriter> measured_, predicted_;
};

// The same with more processes, as far as there are cores, and what two promise for so many. Over the network also what
// each process sends for a large sum, by what a ring of so many would, and what two promise for 1,000 machines with
// 100 Gbit/s.
void scale_allreduce(const Part& part, Bench& bench) {
  const std::string suffix = choose_way(part);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  Curves curves(suffix);
  TimeOfSum promised{};
  for (int processes = 2; processes <= std::max(2, std::min(8, cores)); ++processes) {
    const Group group(processes, "allreduce");
    const Strategy& strategy = group.strategy;
    const Works works = sums(strategy);
    const std::string name = str_cat("_", processes, "processes", suffix);
    const double large = bench.least({"100MB" + name, "us"}, [&] { return seconds(lead(strategy, works, 0)) * 1e6; });
    const double small =
        bench.least({"1KB" + name, "us"}, [&] { return seconds(lead(strategy, works, 1)) / kCalls * 1e6; });
    if (processes == 2) promised = TimeOfSum::by_two(large, small);
    curves.add(processes, large, promised.of(processes));
    if (processes > 2) {
      bench.once({"100MB" + name + "_predicted", "us"}, promised.of(processes));
      bench.once({"100MB" + name + "_by_predicted", "times"}, large / promised.of(processes));
    }
    if (part.name == "network") {
      const double ring = 2.0 * (processes - 1) / processes * 4.0 * kLarge;
      bench.least({"sent_by_ring" + name, "times"}, [&] {
        constexpr int kSums = 10;  // of the last one, others have not heard all when this process has
        const double before = loopback_bytes();
        for (int i = 0; i < kSums; ++i) lead(strategy, works, 0)();
        return (loopback_bytes() - before) / kSums / processes / ring;
      });
    }
    group.end();
  }
  if (part.name != "network") return;
  constexpr int kMachines = 1'000;
  constexpr double kBytesPerUs = 12'500;  // 100 Gbit/s
  const TimeOfSum there{.message_us = promised.message_us, .bytes_us = 4.0 * kLarge / kBytesPerUs};
  bench.once({str_cat("100MB_", kMachines, "machines_predicted"), "us"}, there.of(kMachines));
}

void mwms_mlp(const Part&, Bench& bench) {
  const Group group(2, "mwms_mlp");
  Trained trained(group.strategy, 0);
  const double first = trained.loss();
  const Works works = trained.works();
  for (size_t number : {0, 1}) {
    bench.rate({str_cat("sync_2workers_", number == 0 ? 1 : 10, "steps_per_call"), "samples/s"}, 2.0 * kCalls * kBatch,
               lead(group.strategy, works, number));
  }
  group.end();
  check_fell("mwms_mlp", first, trained.loss());
}

// How much of the sums of a step is hidden by its backward pass. MUSTER_TRACE=FILE gets the profile of the best one.
void overlap(const Part&, Bench& bench) {
  const Group group(2, "overlap");
  DeepNet net(group.strategy);
  const auto step = net.step();
  double best = 0;
  const auto profiled = [&] {
    Profile of_step;
    tell(group.strategy, 1);
    step(&of_step);
    const double share = 100 * share_beside_ops(of_step.events());
    const char* file = std::getenv("MUSTER_TRACE");
    if (file != nullptr && share > best) std::ofstream(file) << of_step.chrome_trace();
    best = std::max(best, share);
    return share;
  };
  for (int i = 0; i < kWarmUp; ++i) profiled();
  best = 0;
  bench.most({"sums_beside_backward", "%"}, profiled);
  group.end();
}

}  // namespace muster::bench
