#include "muster/rpc/answer_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "muster/rpc/backlog.h"

namespace muster {
namespace {

constexpr int kUsualThreads = 2;  // what is called back does little

size_t most_threads() { return std::clamp(std::thread::hardware_concurrency() / 2, 2U, 16U); }

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
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < kUsualThreads; ++i) add_thread();
}

void AnswerThreads::add_thread() {
  threads_.emplace_back([this] { receive(); });
}

void* AnswerThreads::when_done(std::function<void()> done) {
  auto* tag = new Tag{std::move(done)};
  tag->made.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  ++expected_;
  return tag;
}

void AnswerThreads::receive() {
  using Clock = std::chrono::steady_clock;
  Backlog backlog;
  bool more = false;  // threads are needed
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (more && threads_.size() < most_threads()) add_thread();
      mu_.Await(absl::Condition(+[](int* expected) { return *expected > 0; }, &expected_));
      --expected_;
    }
    void* tag = nullptr;
    bool ok = false;
    const Clock::time_point begin = Clock::now();
    queue_.Next(&tag, &ok);
    more = backlog.grows(Clock::now() - begin);
    const std::unique_ptr<Tag> call(static_cast<Tag*>(tag));
    if (call->made.load(std::memory_order_acquire)) call->done();
  }
}

}  // namespace muster
