#include "muster/runtime/executor/core_share.h"

#include <ATen/Parallel.h>
#include <absl/base/const_init.h>
#include <absl/synchronization/mutex.h>

#include <thread>

namespace muster {

// libtorch gives a thread that is new to it the number that anybody has set last, whatever thread that was for. So the
// number is set again, on a thread that nobody uses.
void use_cores(int count) {
  if (at::get_num_threads() == count) return;
  static absl::Mutex one_at_a_time(absl::kConstInit);
  absl::MutexLock lock(&one_at_a_time);
  int of_others = 0;
  std::thread([&] { of_others = at::get_num_threads(); }).join();
  at::set_num_threads(count);
  std::thread([&] { at::set_num_threads(of_others); }).join();
}

}  // namespace muster
