#include "muster/rpc/answer_threads.h"

#include <atomic>
#include <memory>

namespace muster {
namespace {

struct Tag {
  std::function<void()> done;
  // gRPC hands the tag from one thread to another; this says so where ThreadSanitizer can see it.
  std::atomic<bool> made{false};
};

}  // namespace

AnswerThreads& AnswerThreads::instance() {
  static AnswerThreads& threads = *new AnswerThreads;
  return threads;
}

AnswerThreads::AnswerThreads() {
  constexpr int kThreads = 2;  // what is called back does little
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { receive(); });
}

void* AnswerThreads::when_done(std::function<void()> done) {
  auto* tag = new Tag{std::move(done)};
  tag->made.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  ++expected_;
  return tag;
}

void AnswerThreads::receive() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(+[](int* expected) { return *expected > 0; }, &expected_));
      --expected_;
    }
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    const std::unique_ptr<Tag> call(static_cast<Tag*>(tag));
    if (call->made.load(std::memory_order_acquire)) call->done();
  }
}

}  // namespace muster
