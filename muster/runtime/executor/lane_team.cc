#include "muster/runtime/executor/lane_team.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <semaphore>
#include <thread>

#include "muster/runtime/executor/core_share.h"
#include "muster/runtime/memory/memory_pool.h"

namespace muster {

struct LaneTeam::Lane {
  std::binary_semaphore go{0};
  std::binary_semaphore done{0};
  bool stop = false;
  std::jthread thread{};
};

LaneTeam::LaneTeam(const std::vector<at::Device>& lanes) {
  // A lane of a GPU tells that what to do, and computes nothing itself.
  const auto computing = static_cast<int>(std::ranges::count_if(lanes, &at::Device::is_cpu));
  const int threads = std::max(1, at::get_num_threads() / std::max(1, computing));
  for (size_t i = 0; i < lanes.size(); ++i) lanes_.push_back(std::make_unique<Lane>());
  for (int i = 0; i < static_cast<int>(lanes.size()); ++i) {
    lanes_[i]->thread = std::jthread([this, i, threads, &lane = *lanes_[i]] {
      use_cores(threads);
      for (;;) {
        lane.go.acquire();
        if (lane.stop) return;
        MemoryPool::Use pool(memory_);
        (*work_)(i);
        lane.done.release();
      }
    });
  }
}

LaneTeam::~LaneTeam() {
  for (auto& lane : lanes_) {
    lane->stop = true;
    lane->go.release();
  }
}

void LaneTeam::run(const std::function<void(int)>& work) {
  work_ = &work;
  memory_ = MemoryPool::mode_here();
  for (auto& lane : lanes_) lane->go.release();
  for (auto& lane : lanes_) lane->done.acquire();
}

}  // namespace muster
