#pragma once

#include <grpcpp/completion_queue.h>

#include <functional>
#include <utility>

#include "muster/base/elastic_pool.h"
#include "muster/rpc/calls/network_readers.h"
#include "muster/rpc/calls/semaphore.h"

namespace muster {

// Receives the answers of calls that nobody waits for. Thread-safe.
class AnswerThreads {
 public:
  // For all channels of the process. Never destroyed: gRPC's own threads for this are, whenever no channel is left, and
  // version 1.51 frees their queue twice then and when.
  static AnswerThreads& instance();

  explicit AnswerThreads(int most_turns);
  // Waits for all that it has made a tag for.
  ~AnswerThreads();
  AnswerThreads(const AnswerThreads&) = delete;
  AnswerThreads& operator=(const AnswerThreads&) = delete;

  // To be finished with a tag that `when_done` has made.
  grpc::CompletionQueue& queue() { return queue_; }
  // `done` runs once, on one of the threads, which it must not block.
  void* when_done(std::function<void()> done);
  // For what waits for a moment before it can tell how a call has ended.
  void run_slow(std::function<void()> work) { slow_.submit(std::move(work)); }

  int turns() const { return readers_.turns(); }

 private:
  grpc::CompletionQueue queue_;
  // A thread that waits in gRPC reads the network for everybody, and would have to hand the answer of a call over to
  // the thread that waits for it: so none is there for longer than it has an answer to expect.
  Semaphore expected_;  // answers that no thread waits for
  ElasticPool slow_{"slow answers", 16};
  NetworkReaders readers_;  // one of them in gRPC, more while answers wait for them
};

}  // namespace muster
