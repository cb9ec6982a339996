// Those whom fit() tells what happens.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "muster/base/status.h"
#include "muster/distribute/strategy.h"
#include "muster/fit/callbacks/callback.h"
#include "muster/fit/callbacks/watchers.h"

namespace muster {

// The callbacks of one call of fit(). On parameter servers those that only watch hold up no worker: they are told on
// another thread. For one thread; `training` is there as long as this is.
class Audience {
 public:
  // Throws Error{kInvalidArgument} for a callback of steps on parameter servers, and for one that is null.
  Audience(const Callbacks& callbacks, const Strategy& strategy, Training& training);
  // Tells all of them that fit() is left, if it has begun.
  ~Audience();
  Audience(const Audience&) = delete;
  Audience& operator=(const Audience&) = delete;

  bool wants_steps() const { return wants_steps_; }
  bool wants_learning_rate() const;
  // Of an epoch with these: the names of all numbers; nothing if some are known only after the first one.
  std::optional<std::vector<std::string>> numbers(std::vector<std::string> names) const;

  void train_begin();  // and what an earlier training remembers
  // Throws what one that watches has thrown, before anybody is told.
  void check();
  void before_change();
  void epoch_begin();
  // Whether one of the next `count` steps is to be profiled, or one of the last ones was and is told about.
  bool wants_profile(int64_t count) const;
  void profile(const Profile& profile, int64_t count);
  void steps(const Logs& so_far);
  // Around `evaluate`: throws the first error, when all that has begun has ended.
  void validation(const std::function<void()>& evaluate);
  void add_logs(Logs& logs);
  void epoch_end(const Logs& logs);
  void train_end(const Logs& logs);

 private:
  struct Listener {
    Callbacks::Any callback;
    bool beside;  // told on the other thread
  };
  using Told = std::function<void(Callback&, Training&)>;

  void tell(const Told& what);
  void tell_here(const Told& what);
  std::vector<std::string> memories() const;
  std::vector<std::shared_future<Status>> being_written() const;

  Training& training_;
  bool wants_steps_ = false, begun_ = false;
  std::vector<Listener> listeners_;
  std::optional<Watchers> watchers_;
};

}  // namespace muster
