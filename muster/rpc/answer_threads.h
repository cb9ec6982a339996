#pragma once

#include <grpcpp/completion_queue.h>

#include <functional>
#include <thread>
#include <vector>

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
  static void* when_done(std::function<void()> done);

 private:
  AnswerThreads();
  void receive();

  grpc::CompletionQueue queue_;
  std::vector<std::jthread> threads_;
};

}  // namespace muster
