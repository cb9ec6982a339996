#include "muster/rpc/calls/answer_threads.h"

#include <algorithm>
#include <memory>
#include <thread>

namespace muster {
namespace {

// What is called back does little.
int most_answer_turns() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2U, 16U)); }

class AnswerTag final : public NetworkEvent {
 public:
  explicit AnswerTag(std::function<void()> done) : done_(std::move(done)) {}

  void happened(bool) override {
    const std::unique_ptr<AnswerTag> self(this);
    done_();
  }

 private:
  const std::function<void()> done_;
};

}  // namespace

AnswerThreads& AnswerThreads::instance() {
  static AnswerThreads& threads = *new AnswerThreads(most_answer_turns());
  return threads;
}

AnswerThreads::AnswerThreads(int most_turns)
    : readers_(
          [this](void** tag, bool* ok, std::chrono::nanoseconds*) {
            expected_.acquire();
            if (queue_.Next(tag, ok)) return true;
            expected_.release();  // for the next one to see that this is the end
            return false;
          },
          {.most_turns = most_turns}) {}

AnswerThreads::~AnswerThreads() {
  queue_.Shutdown();
  expected_.release();
}

void* AnswerThreads::when_done(std::function<void()> done) {
  void* const tag = (new AnswerTag(std::move(done)))->tag();
  expected_.release();
  return tag;
}

}  // namespace muster
