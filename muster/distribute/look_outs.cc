#include "muster/distribute/look_outs.h"

#include <thread>

namespace muster {

void LookOuts::wait(const std::function<bool()>& there, const std::function<void()>& sleep) {
  const Time begin = now_();
  const bool looks = in_vain_ < kFew || in_vain_ == kFew + kNowAndThen - 1;
  if (++in_vain_ == kFew + kNowAndThen) in_vain_ = kFew;  // whatever comes of it: `sleep` may throw
  bool found = false;
  if (looks) {
    // The core is left to whoever has work for it.
    while (!(found = there()) && now_() - begin < moment_) std::this_thread::yield();
  }
  if (!found) sleep();
  if (found || now_() - begin < moment_) in_vain_ = 0;  // it was seen, or would have been
}

}  // namespace muster
