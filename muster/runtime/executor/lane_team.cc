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

LaneTeam::LaneTeam(int lanes) {
  const int threads = std::max(1, at::get_num_threads() / lanes);
  for (int i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
  for (int i = 0; i < lanes; ++i) {
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
