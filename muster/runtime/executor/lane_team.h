// Threads that run the devices of one program side by side.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "muster/runtime/memory/memory_pool.h"

namespace muster {

// One thread per lane. `run` calls `work(lane)` on every lane's own thread and returns when all have returned.
// Each thread tells libtorch to use its share of the cores: two lanes with all cores each would be many times slower.
// Lanes of GPUs take none from those of CPUs. `run` is for one caller at a time.
class LaneTeam {
 public:
  explicit LaneTeam(const std::vector<at::Device>& lanes);
  ~LaneTeam();
  LaneTeam(const LaneTeam&) = delete;
  LaneTeam& operator=(const LaneTeam&) = delete;

  // REQUIRES: `work` does not throw.
  void run(const std::function<void(int lane)>& work);

 private:
  struct Lane;
  const std::function<void(int)>* work_ = nullptr;
  MemoryPool::Mode memory_{};  // the lanes get their memory as the caller does
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace muster
