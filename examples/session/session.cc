// Variables on two parameter servers, arithmetic on a worker, driven by a client: feeds are arguments, fetches are
// results. Without an argument the cluster is in this process; else it is the one at grpc://host:port.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>
#include <optional>

int main(int argc, char** argv) {
  std::optional<muster::InProcessCluster> cluster;
  std::string target = argc > 1 ? argv[1] : "";
  if (target.empty()) target = cluster.emplace(muster::InProcessClusterOptions{.workers = 1, .ps = 2}).target();

  muster::Variable w1(torch::randn({784, 128}), {.name = "w1", .device = "/job:ps/task:0"});
  muster::Variable w2(torch::randn({128, 10}), {.name = "w2", .device = "/job:ps/task:1"});
  auto predict = muster::function([&](torch::Tensor x) {
    muster::DeviceScope on("/job:worker/task:0/device:CPU:0");
    return torch::matmul(torch::relu(torch::matmul(x, w1)), w2);
  });

  muster::Session session({.target = target, .log_device_placement = true});
  session.run(muster::initializer(w1, w2));
  torch::Tensor logits = session.run(predict, torch::randn({32, 784}));
  std::cout << "logits " << logits.sizes() << "\n";
  for (const std::string& device : session.list_devices()) std::cout << device << "\n";
}
