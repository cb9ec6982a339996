#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "muster/base/status.h"

namespace muster {

// Asks work to stop, once: whoever does the work looks at cancelled() between its parts, or is called back.
// Invariant: once cancelled it stays so, with the first reason.
// Thread-safe. Callbacks run on the thread that cancels, with no lock held, exactly once.
class Cancellation {
  struct State;

 public:
  using Callback = std::function<void(const Status& why)>;

  // Keeps a callback registered. Once it is destroyed the callback is not running and will not run; a destructor that
  // is called by the callback itself does not wait for it.
  class [[nodiscard]] Registration {
   public:
    Registration() = default;
    ~Registration() { reset(); }
    Registration(Registration&& other) noexcept;
    Registration& operator=(Registration&& other) noexcept;

    void reset();

   private:
    friend class Cancellation;
    Registration(std::shared_ptr<State> state, uint64_t id);

    std::shared_ptr<State> state_;  // Shared: a registration may outlive its Cancellation.
    uint64_t id_ = 0;
  };

  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Later calls do nothing. REQUIRES: `why` is not ok.
  void cancel(Status why = Status(StatusCode::kCancelled, "cancelled"));

  // Costs one relaxed load: fit for a check between two instructions.
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  // Throws an Error with the reason.
  void throw_if_cancelled() const {
    if (cancelled()) throw Error(status());
  }

  // The reason; ok while not cancelled.
  Status status() const;

  // Calls back when cancelled; at once, on this thread, if that has happened.
  Registration on_cancel(Callback callback) const;

 private:
  std::atomic<bool> cancelled_ = false;
  const std::shared_ptr<State> state_;
};

}  // namespace muster
