// Several clients, each with a session of its own, count in one variable on a parameter server.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>
#include <thread>
#include <vector>

int main() {
  muster::InProcessCluster cluster({.workers = 2, .ps = 1});
  muster::Variable count(torch::zeros({}), {.name = "count", .device = "/job:ps/task:0"});
  auto add_one = muster::function([&] { count.assign_add(torch::ones({})); });
  muster::Session first({.target = cluster.target()});
  first.run(muster::initializer(count));

  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      muster::Session session({.target = cluster.target({"worker", client % 2})});
      for (int i = 0; i < 25; ++i) session.run(add_one);
    });
  }
  for (std::thread& client : clients) client.join();

  std::cout << "4 clients counted to " << first.value(count).item<float>() << "\n";
}
