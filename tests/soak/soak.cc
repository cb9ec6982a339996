// Clients that try to leave something behind. What they do is said by the first word:
//   soak SECONDS                    sixteen clients at a cluster of this process: sessions come and go, steps run, time
//                                   out and fail. In the end every acknowledged increment is there, and nothing of the
//                                   clients is left at the servers.
//   soak clients SECONDS --cluster  the same at servers that are processes, for soak.py to look at.
//   soak functions COUNT --cluster  makes and drops so many functions.
//   soak sessions COUNT --cluster   opens and closes so many sessions, one after the other, with a step in each.
//   soak train --cluster            trains until it is killed, or its input ends.
//   soak reset --cluster            drops the variables without a container.
#include <poll.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "muster/muster.h"

namespace {

constexpr int kClients = 16;

struct Totals {
  std::atomic<int64_t> acknowledged{0}, attempted{0}, timeouts{0}, failures{0}, sessions{0};
};

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << "soak: " << what << "\n";
  std::_Exit(1);  // others still run, with all that exit() would destroy
}

// `target` names a worker by its number.
void run_clients(std::chrono::seconds seconds, const std::function<std::string(int)>& target) {
  muster::Variable count(torch::zeros({}, torch::kLong),
                         {.name = "count", .trainable = false, .device = "/job:ps/task:0"});
  muster::Variable table(torch::zeros({256, 64}), {.name = "table", .device = "/job:ps/task:1"});
  auto increment = muster::function([&](torch::Tensor x) {
    count.assign_add(torch::ones({}, torch::kLong));
    return torch::matmul(x, table);
  });
  auto update = muster::function([&](torch::Tensor x) { table.assign_add(x); });
  auto forever = muster::function([](torch::Tensor x) {
    muster::DeviceScope on("/job:ps/task:1");
    return muster::while_loop([](torch::Tensor v) { return v.sum() >= 0; }, [](torch::Tensor v) { return v + 0; }, x);
  });
  auto fails = muster::function([](torch::Tensor x, torch::Tensor index) {
    muster::DeviceScope on("/job:ps/task:0");
    return torch::index_select(x, 0, index);
  });
  muster::Session first({.target = target(0)});
  first.run(muster::initializer(count, table));
  first.run(fails, torch::ones({2}), torch::tensor({0}));  // a trace runs its function: once it must go well

  Totals totals;
  const auto end = std::chrono::steady_clock::now() + seconds;
  auto client = [&](int number) {
    std::mt19937 random(number);
    while (std::chrono::steady_clock::now() < end) {
      muster::Session session({.target = target(number % 2)});
      ++totals.sessions;
      for (int i = 0; i < 20 && std::chrono::steady_clock::now() < end; ++i) {
        const int what = static_cast<int>(random() % 20);
        try {
          if (what < 14) {
            ++totals.attempted;
            session.run(increment, torch::ones({4, 256}));
            ++totals.acknowledged;
          } else if (what < 18) {
            session.run(update, torch::ones({256, 64}));
          } else if (what == 18) {
            session.run_with({.timeout = std::chrono::milliseconds(5)}, forever, torch::ones({2}));
          } else {
            session.run(fails, torch::ones({2}), torch::tensor({5}));
          }
        } catch (const muster::Error& error) {
          const bool expected = what >= 18 && (error.code() == muster::StatusCode::kDeadlineExceeded ||
                                               error.code() == muster::StatusCode::kInvalidArgument);
          expect(expected, muster::str_cat("client ", number, ": ", error.what()));
          ++(what == 18 ? totals.timeouts : totals.failures);
        }
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(client, i);
  for (std::thread& thread : clients) thread.join();

  const auto final_count = first.value(count).item<int64_t>();
  std::cout << totals.sessions << " sessions, " << totals.acknowledged << " increments acknowledged, " << final_count
            << " applied, " << totals.timeouts << " timeouts, " << totals.failures << " failures\n";
  expect(final_count == totals.acknowledged, "the increments that were acknowledged are not those that were applied");
}

void run_here(std::chrono::seconds seconds) {
  muster::InProcessCluster cluster({.workers = 2, .ps = 2});
  run_clients(seconds, [&](int worker) { return cluster.target({"worker", worker}); });
  for (const muster::TaskId& task : cluster.spec().all_tasks()) {
    expect(cluster.worker(task).rendezvous().waiting_values() == 0, task.to_string() + " keeps values of ended steps");
    expect(cluster.worker(task).status().programs == 0, task.to_string() + " keeps programs of ended sessions");
  }
}

void make_functions(int64_t count, const muster::ClusterResolver& cluster, const std::string& target) {
  muster::ParameterServerStrategy strategy(cluster);
  auto sum = strategy.make<muster::Variable>(torch::zeros({}, torch::kLong));
  muster::Session session({.target = target});
  for (int64_t i = 0; i < count; ++i) {
    auto here = muster::function([i](torch::Tensor x) { return x + i; });
    expect(session.run(here, here(torch::zeros({}, torch::kLong))).item<int64_t>() == 2 * i, "a function is wrong");
    if (i % 10 != 0) continue;
    // Every coordinator gives programs to workers, and they give parts of them to the parameter servers.
    muster::ClusterCoordinator coordinator(strategy);
    coordinator.schedule(muster::function([&sum] { sum.assign_add(torch::ones({}, torch::kLong)); }));
    coordinator.join();
  }
  expect(sum.value().item<int64_t>() == (count + 9) / 10, "closures were lost");
}

void make_sessions(int64_t count, const std::string& target) {
  const auto add = muster::function([](torch::Tensor x) { return x + 1; });
  const torch::Tensor one = torch::ones({});
  for (int64_t i = 0; i < count; ++i) {
    muster::Session session({.target = target});
    expect(session.run(add, one).item<float>() == 2, "a step is wrong");
  }
}

bool input_has_ended() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) != 0;  // nobody writes anything
}

void train(const muster::ClusterResolver& cluster) {
  const muster::ParameterServerStrategy strategy(cluster);
  auto scope = strategy.scope();
  muster::Variable weights(torch::zeros({1024, 1024}), {.name = "weights"}), bias(torch::zeros({1024}));
  muster::ClusterCoordinator coordinator(strategy);
  muster::PerWorkerDataset examples = coordinator.create_per_worker_dataset(
      [] { return muster::Dataset::from_tensors({torch::ones({16, 1024})}).repeat(); });
  const auto step = muster::function([&](muster::Iterator input) {
    torch::Tensor loss = (torch::matmul(input.next<1>()[0], weights) + bias).pow(2).mean();
    weights.assign_sub(0.1 * loss * weights.value());
    bias.assign_sub(0.1 * loss * bias.value());
  });
  while (!input_has_ended()) {
    for (int i = 0; i < 20; ++i) coordinator.schedule(step, examples);
    coordinator.join();
    std::cout << "trained" << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  at::set_num_threads(1);
  try {
    if (words.empty() || std::isdigit(words[0][0]) != 0) {
      run_here(std::chrono::seconds(words.empty() ? 10 : std::stoi(words[0])));
      return 0;
    }
    const muster::SimpleClusterResolver cluster = muster::resolver_from_flags(argc, argv);
    auto target = [&](int worker) { return "grpc://" + cluster.cluster_spec().task_address({"worker", worker}); };
    if (words[0] == "clients") run_clients(std::chrono::seconds(std::stoi(words.at(1))), target);
    if (words[0] == "functions") make_functions(std::stoll(words.at(1)), cluster, target(0));
    if (words[0] == "sessions") make_sessions(std::stoll(words.at(1)), target(0));
    if (words[0] == "train") train(cluster);
    if (words[0] == "reset") muster::Session::reset({.target = target(0)});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "soak: " << error.what() << std::endl;
    return 1;
  }
}
