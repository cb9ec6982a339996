#include "muster/base/blocking.h"

#include <utility>

namespace muster {
namespace {

thread_local const WhenBlocking* when_blocking = nullptr;

}  // namespace

WhenBlocking::WhenBlocking(std::function<void()> then) : then_(std::move(then)) { when_blocking = this; }

WhenBlocking::~WhenBlocking() { when_blocking = nullptr; }

void about_to_block() {
  if (when_blocking != nullptr) when_blocking->then_();
}

}  // namespace muster
