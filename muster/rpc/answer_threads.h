#pragma once

#include <grpcpp/completion_queue.h>

#include <functional>
#include <semaphore>
#include <utility>

#include "muster/base/elastic_pool.h"
#include "muster/rpc/network_readers.h"

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
  void* when_done(std::function<void()> done);
  // For what waits for a moment before it can tell how a call has ended.
  void run_slow(std::function<void()> work) { slow_.submit(std::move(work)); }

 private:
  AnswerThreads();

  grpc::CompletionQueue queue_;
  // A thread that waits in gRPC reads the network for everybody, and would have to hand the answer of a call over to
  // the thread that waits for it: so none is there for longer than it has an answer to expect.
  std::counting_semaphore<> expected_{0};  // answers that no thread waits for
  ElasticPool slow_{"slow answers", 16};
  NetworkReaders readers_;  // one of them in gRPC, more while answers wait for them
};

}  // namespace muster
