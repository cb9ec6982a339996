// The smallest training there is, for hosts_test.py: every step adds one to a variable on a parameter server. It takes
// steps until its input ends, and then says what was scheduled and what has arrived.
#include <muster/muster.h>
#include <poll.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>

namespace {

bool input_has_ended() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) != 0;  // nobody writes anything
}

void count(const muster::ClusterResolver& cluster) {
  const muster::ParameterServerStrategy strategy(cluster);
  auto counter = strategy.make<muster::Variable>(torch::zeros({}, torch::kLong));
  const auto step = muster::function([&] { counter.assign_add(torch::ones({}, torch::kLong)); });
  muster::ClusterCoordinator coordinator(strategy);

  int64_t scheduled = 0;
  while (!input_has_ended()) {
    for (int i = 0; i < 20; ++i) coordinator.schedule(step);
    scheduled += 20;
    coordinator.join();
    std::cout << "scheduled " << scheduled << " workers " << coordinator.workers_up() << std::endl;
  }
  std::cout << "scheduled " << scheduled << " counted " << counter.value().item<int64_t>() << " failures "
            << coordinator.metrics().worker_failures << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    count(muster::resolver_from_flags(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
