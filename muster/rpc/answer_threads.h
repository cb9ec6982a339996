#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <grpcpp/completion_queue.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/elastic_pool.h"

namespace muster {

// Receives the answers of calls that nobody waits for, for all channels of the process. Never destroyed: gRPC's own
// threads for this are, whenever no channel is left, and version 1.51 frees their queue twice then and when.
// Thread-safe.
class AnswerThreads {
 public:
  static AnswerThreads& instance();

  // To be finished with a tag that `when_done` has made.
  grpc::CompletionQueue& queue() { return queue_; }
  // `done` runs once, on one of the threads, which it must not block.
  void* when_done(std::function<void()> done) ABSL_LOCKS_EXCLUDED(mu_);
  // For what waits for a moment before it can tell how a call has ended.
  void run_slow(std::function<void()> work) { slow_.submit(std::move(work)); }

 private:
  AnswerThreads();
  void receive() ABSL_LOCKS_EXCLUDED(mu_);
  void add_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::CompletionQueue queue_;
  absl::Mutex mu_;
  // A thread that waits in gRPC reads the network for everybody, and would have to hand the answer of a call over to
  // the thread that waits for it: so none is there for longer than it has an answer to expect.
  int expected_ ABSL_GUARDED_BY(mu_) = 0;  // answers that no thread waits for
  ElasticPool slow_{"slow answers", 16};
  std::vector<std::jthread> threads_ ABSL_GUARDED_BY(mu_);  // more while answers wait for them; those that idle sleep
};

}  // namespace muster
