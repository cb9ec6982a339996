#include "muster/fit/callbacks/audience.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <map>
#include <system_error>
#include <typeinfo>
#include <utility>

#include "muster/base/status.h"
#include "muster/fit/model.h"

namespace muster {
namespace {

// What fit() has measured is what everybody takes it for: a callback adds numbers of its own beside it.
void refuse_overwritten(const Logs& measured, const Logs& logs, const Callback& callback) {
  for (const auto& [name, value] : measured) {
    const auto now = logs.find(name);
    if (now != logs.end() && (now->second == value || (std::isnan(now->second) && std::isnan(value)))) continue;
    throw invalid_argument("fit: add_logs() of ", c10::demangle(typeid(callback).name()),
                           now == logs.end() ? " has removed \"" : " has overwritten \"", name,
                           "\", which fit has measured; expected a name of its own");
  }
}

// Each would remove what the other one has saved, or take it for its own.
void refuse_shared_directories(const Callbacks& callbacks) {
  std::map<std::filesystem::path, std::string> savers;
  for (const Callbacks::Any& callback : callbacks) {
    const std::string directory = callback->checkpoint_directory();
    if (directory.empty()) continue;
    std::error_code unknown;  // then the words have to differ
    std::filesystem::path path =
        std::filesystem::weakly_canonical(std::filesystem::absolute(directory, unknown), unknown);
    if (unknown) path = directory;
    if (path.filename().empty()) path = path.parent_path();  // "backup/"
    const Callback& saver = *callback;
    const std::string name = c10::demangle(typeid(saver).name());
    const auto [first, is_new] = savers.emplace(path, name);
    if (is_new) continue;
    throw invalid_argument("fit: ", first->second, " and ", name, " both save checkpoints in \"", directory,
                           "\"; expected a directory for each, since each removes older ones from its own");
  }
}

}  // namespace

Audience::Audience(const Callbacks& callbacks, const Strategy& strategy, Training& training) : training_(training) {
  const bool on_servers = strategy.servers() != nullptr;
  // Of several processes each sees steps of its own.
  const bool alone = !on_servers && strategy.across().alone();
  size_t number = 0;
  for (const Callbacks::Any& callback : callbacks) {
    if (callback.operator->() == nullptr) throw invalid_argument("fit: callback ", number, " is null, expected one");
    ++number;
    if (on_servers && callback->wants_steps()) {
      throw invalid_argument(
          "fit: Batch-level `Callback`s are not supported with ParameterServerStrategy, whose workers do not wait for "
          "each other; expected callbacks of epochs");
    }
    if (on_servers && callback->profiled_step()) {
      throw invalid_argument(
          "fit: a callback would profile step ", *callback->profiled_step(),
          " (TensorBoard's profile_step), but under ParameterServerStrategy workers run the steps, whose processes "
          "have no callbacks; expected none, or a strategy whose processes train in step");
    }
    wants_steps_ = wants_steps_ || callback->wants_steps() || (alone && callback->uses_steps());
    listeners_.push_back({callback, on_servers && callback->only_watches()});
  }
  refuse_shared_directories(callbacks);
  if (on_servers) watchers_.emplace();
  training_.memories = [this] { return memories(); };
  training_.being_written = [this] { return being_written(); };
  training_.before_change = [this] { before_change(); };
}

Audience::~Audience() {
  watchers_.reset();
  if (!begun_) return;
  for (const Listener& listener : listeners_) listener.callback->on_train_left();
}

bool Audience::wants_learning_rate() const {
  return std::ranges::any_of(listeners_, [](const Listener& each) { return each.callback->wants_learning_rate(); });
}

std::optional<std::vector<std::string>> Audience::numbers(std::vector<std::string> names) const {
  for (const Listener& listener : listeners_) {
    const std::optional<std::vector<std::string>> added = listener.callback.added_names();
    if (!added) return std::nullopt;
    names.insert(names.end(), added->begin(), added->end());
  }
  return names;
}

std::vector<std::string> Audience::memories() const {
  std::vector<std::string> memories;
  for (const Listener& listener : listeners_) {
    memories.push_back(listener.beside ? "" : listener.callback->memory());
  }
  return memories;
}

std::vector<std::shared_future<Status>> Audience::being_written() const {
  std::vector<std::shared_future<Status>> all;
  for (const Listener& listener : listeners_) {
    if (listener.beside) continue;
    std::shared_future<Status> one = listener.callback->being_written();
    if (one.valid()) all.push_back(std::move(one));
  }
  return all;
}

void Audience::tell_here(const Told& what) {
  for (const Listener& listener : listeners_) {
    if (!listener.beside) what(*listener.callback, training_);
  }
}

void Audience::tell(const Told& what) {
  for (const Listener& listener : listeners_) {
    if (!listener.beside) {
      what(*listener.callback, training_);
      continue;
    }
    Training now = training_;
    now.memories = [] { return std::vector<std::string>(); };  // of callbacks that are at work meanwhile
    now.being_written = [] { return std::vector<std::shared_future<Status>>(); };
    now.before_change = [] {};
    watchers_->add([what, callback = listener.callback, now = std::move(now)]() mutable { what(*callback, now); });
  }
}

void Audience::train_begin() {
  begun_ = true;
  for (const Listener& listener : listeners_) listener.callback->on_train_begin(training_);
  auto remembered = training_.remembered.begin();
  for (const Listener& listener : listeners_) {
    if (remembered != training_.remembered.end()) listener.callback->remember(*remembered++);
  }
}

void Audience::check() {
  if (watchers_) watchers_->check();
}

void Audience::before_change() {
  tell_here([](Callback& callback, Training& training) { callback.before_change(training); });
}

void Audience::epoch_begin() {
  tell([](Callback& callback, Training& training) { callback.on_epoch_begin(training); });
}

bool Audience::wants_profile(int64_t count) const {
  return std::ranges::any_of(listeners_, [&](const Listener& each) {
    const std::optional<int64_t> step = each.callback->profiled_step();
    return step && training_.steps < *step && *step <= training_.steps + count;
  });
}

void Audience::profile(const Profile& profile, int64_t count) {
  tell_here([&](Callback& callback, Training& training) {
    const std::optional<int64_t> step = callback.profiled_step();
    if (step && training.steps - count < *step && *step <= training.steps) callback.on_profile(training, profile);
  });
}

void Audience::steps(const Logs& so_far) {
  tell_here([&](Callback& callback, Training& training) { callback.on_steps(training, so_far); });
}

void Audience::validation(const std::function<void()>& evaluate) {
  if (training_.model.optimizer().keeps_averages()) before_change();
  std::vector<Callback*> begun;
  std::exception_ptr error;
  try {
    tell_here([&](Callback& callback, Training& training) {
      callback.on_validation_begin(training);
      begun.push_back(&callback);
    });
    evaluate();
  } catch (...) {
    error = std::current_exception();
  }
  for (Callback* const callback : begun) {
    try {
      callback->on_validation_end(training_);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void Audience::add_logs(Logs& logs) {
  const Logs measured = logs;
  tell_here([&](Callback& callback, Training& training) {
    callback.add_logs(training, logs);
    refuse_overwritten(measured, logs, callback);
  });
}

void Audience::epoch_end(const Logs& logs) {
  tell([logs](Callback& callback, Training& training) { callback.on_epoch_end(training, logs); });
  tell([](Callback& callback, Training& training) { callback.on_epoch_over(training); });
}

void Audience::train_end(const Logs& logs) {
  if (watchers_) watchers_->wait();
  for (const Listener& listener : listeners_) listener.callback->on_train_end(training_, logs);
  for (const Listener& listener : listeners_) listener.callback->on_train_over(training_);
  for (const Listener& listener : listeners_) listener.callback->on_train_done(training_);
}

}  // namespace muster
