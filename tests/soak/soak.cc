// Sixteen clients at one cluster, for as long as asked: sessions come and go, steps run, time out and fail. In the end
// every acknowledged increment is there, and nothing of the clients is left at the servers.
#include <torch/torch.h>

#include <atomic>
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
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const auto seconds = std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 10);
  at::set_num_threads(1);
  muster::InProcessCluster cluster({.workers = 2, .ps = 2});
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
  muster::Session first({.target = cluster.target()});
  first.run(muster::initializer(count, table));
  first.run(fails, torch::ones({2}), torch::tensor({0}));  // a trace runs its function: once it must go well

  Totals totals;
  const auto end = std::chrono::steady_clock::now() + seconds;
  auto client = [&](int number) {
    std::mt19937 random(number);
    while (std::chrono::steady_clock::now() < end) {
      muster::Session session({.target = cluster.target({"worker", number % 2})});
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
  first.close();
  for (const muster::TaskId& task : cluster.spec().all_tasks()) {
    expect(cluster.worker(task).rendezvous().waiting_values() == 0, task.to_string() + " keeps values of ended steps");
    expect(cluster.worker(task).status().programs == 0, task.to_string() + " keeps programs of ended sessions");
  }
}
