// What the tests of coordinators share. Not part of the library.
#pragma once

#include <absl/synchronization/mutex.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "muster/cluster/in_process_cluster.h"
#include "muster/cluster/test_environment.h"
#include "muster/data/sources/sources.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/trace/control_flow.h"

namespace muster::testing_support {

// The strategy of a cluster over its transport.
inline ParameterServerStrategy strategy_of(const InProcessCluster& cluster, Transport transport,
                                           ParameterServerOptions options = {}) {
  return ParameterServerStrategy(cluster.resolver(), transport == Transport::kLocal ? cluster.peers() : nullptr,
                                 std::move(options));
}

// Where sequences of examples wait until a test lets them go on. Thread-safe.
class Gate {
 public:
  void open() {
    absl::MutexLock lock(&mu_);
    is_open_ = true;
  }
  void pass() {
    absl::MutexLock lock(&mu_);
    ++came_;
    mu_.Await(absl::Condition(&is_open_));
  }
  // How many have come to it so far.
  int came() const {
    absl::MutexLock lock(&mu_);
    return came_;
  }

  // For the workers of a cluster, whose sequences then all wait here.
  static LocalWorkerOptions before_all(const std::shared_ptr<Gate>& gate) {
    LocalWorkerOptions options;
    options.open_source = [gate](const std::string& description, Worker& worker) {
      return std::make_unique<Source>(gate, muster::open_source(description, worker));
    };
    return options;
  }

 private:
  class Source : public ElementSource {
   public:
    Source(std::shared_ptr<Gate> gate, std::unique_ptr<ElementSource> behind)
        : gate_(std::move(gate)), behind_(std::move(behind)) {}
    std::optional<Element> next() override {
      gate_->pass();
      return behind_->next();
    }

   private:
    const std::shared_ptr<Gate> gate_;
    const std::unique_ptr<ElementSource> behind_;
  };

  mutable absl::Mutex mu_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  int came_ ABSL_GUARDED_BY(mu_) = 0;
};

// x after so many turns, each of which looks at whether the run was cancelled.
inline at::Tensor slowly(at::Tensor x, int64_t turns = 20'000) {
  return repeat(turns, [](at::Tensor, at::Tensor value) { return value + 0; }, std::move(x));
}

// Runs until it is cancelled.
inline at::Tensor for_ever(at::Tensor x) {
  return while_loop([](at::Tensor value) { return value.sum() > -1; }, [](at::Tensor value) { return value + 0; },
                    std::move(x));
}

inline at::Tensor bad_index() { return torch::tensor({7}); }
inline at::Tensor good_index() { return torch::tensor({1}); }
// A function that fails with kInvalidArgument when it runs, not when it is traced, unless its argument is good.
inline auto picky() {
  auto pick = function([](at::Tensor index) { return torch::index_select(torch::ones({2}), 0, index); });
  pick.program(good_index());
  return pick;
}

}  // namespace muster::testing_support
