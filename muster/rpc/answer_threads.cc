#include "muster/rpc/answer_threads.h"

#include <memory>

namespace muster {

AnswerThreads& AnswerThreads::instance() {
  static AnswerThreads& threads = *new AnswerThreads;
  return threads;
}

AnswerThreads::AnswerThreads() {
  constexpr int kThreads = 2;  // what is called back does little
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { receive(); });
}

void AnswerThreads::receive() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    const std::unique_ptr<std::function<void()>> done(static_cast<std::function<void()>*>(tag));
    (*done)();
  }
}

}  // namespace muster
