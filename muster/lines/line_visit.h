// How a process lays lines to another one.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/status.h"
#include "muster/lines/line_door.h"

namespace muster {

// The visitor's end of a LineDoor, for one channel to a task. A line is laid when there was something large to send and
// none was free; where none can be laid, that is tried again now and then. Thread-safe; nothing waits but what runs
// in the background.
class LineVisit : public std::enable_shared_from_this<LineVisit> {
 public:
  // `address`: of the task's server.
  explicit LineVisit(std::string address);

  struct Means {
    using Answered = std::function<void(const Status&, LineDoor::Place, bool let_in)>;
    // Asks the task where its door is; or, with a key, to let in who has connected with that. Owns what it needs.
    std::function<void(uint64_t key, Answered)> ask;
    std::function<void(std::function<void()>)> run_in_background;
  };

  uint64_t caller() const { return caller_; }  // what this is in its calls
  LinesOut& out() { return out_; }
  std::shared_ptr<LineIn> in(uint64_t key)ABSL_LOCKS_EXCLUDED(mu_);  // null: none is known
  // One more, unless there are enough or one is just being laid.
  void want(LineWay way, const Means& means) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void connect(LineWay way, const Means& means, LineDoor::Place place);
  void laid(const LineHello& hello, Descriptor socket) ABSL_LOCKS_EXCLUDED(mu_);
  void failed() ABSL_LOCKS_EXCLUDED(mu_);
  void give_up() ABSL_LOCKS_EXCLUDED(mu_);  // the task has no door
  size_t count(LineWay way) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string host_;
  const uint64_t caller_;
  LinesOut out_;
  absl::Mutex mu_;
  bool laying_ ABSL_GUARDED_BY(mu_) = false;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;  // since one was laid
  std::chrono::steady_clock::time_point failed_ ABSL_GUARDED_BY(mu_);
  bool given_up_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<LineIn>> in_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
