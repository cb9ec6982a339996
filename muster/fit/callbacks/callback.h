// What happens between the epochs of fit().
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/fit/history.h"
#include "muster/graph/program.h"
#include "muster/runtime/executor/profile.h"

namespace muster {

class Model;

// What fit() is at, for callbacks, which may change some of it.
struct Training {
  Model& model;
  int epochs;            // all of them
  int epoch = 0;         // this one, from 0; in on_train_begin: the first
  int64_t steps = 0;     // taken so far, by this call of fit()
  int64_t examples = 0;  // that they have seen; of this epoch, only what this process knows of
  // The optimizer's, of the epoch that has ended, if a callback wants it; nothing before.
  std::optional<double> learning_rate{};
  // Set: this epoch is the last; by on_steps() of a training of one process: it ends here, too.
  bool stop = false;
  bool preempted = false;  // likewise, since the job was told to end, before its last epoch: it is to be started again
  // What a step does, as it was traced for the one before; nothing before the first.
  std::function<std::optional<Program>()> program = [] { return std::nullopt; };
  // What callbacks remember, in their order. Whoever brings back an earlier training in on_train_begin gives what that
  // one had to `remembered`, and all get it when the training begins.
  std::function<std::vector<std::string>()> memories = [] { return std::vector<std::string>(); };
  // How what they still write ends, Callback::being_written(): who saves the memories shows them to nobody before.
  std::function<std::vector<std::shared_future<Status>>()> being_written = [] {
    return std::vector<std::shared_future<Status>>();
  };
  // For a callback that is about to change variables, such as the learning rate: ends what is being saved meanwhile,
  // which is to have what they were in the epoch before.
  std::function<void()> before_change = [] {};
  std::vector<std::string> remembered{};
  // Likewise: where the next epoch goes on in the data. "" if it begins anew, or nobody knows: it is known in one
  // process that is given a dataset, or tensors, and steps_per_epoch.
  std::function<std::string()> place_in_data = [] { return std::string(); };
  std::string begin_at{};
  // The names of an epoch's numbers; nothing if they are known only after the first one.
  std::optional<std::vector<std::string>> numbers{};
};

// Called by fit(), on its thread, unless it only watches. Under a strategy of several processes each of them calls its
// own, with the same numbers, but only the chief should print and write.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_train_begin(Training&) {}
  virtual void on_epoch_begin(Training&) {}
  // After steps_per_execution steps, with what this process has seen of the epoch so far. Only if wants_steps(), which
  // is an error on parameter servers, where nobody waits for a step.
  virtual void on_steps(Training&, const Logs&) {}
  virtual bool wants_steps() const { return false; }
  // The same where steps are seen one by one, in one process, and no error elsewhere.
  virtual bool uses_steps() const { return wants_steps(); }
  // The step, counted from 1 by Training::steps, that on_profile() should see: the program in which it is taken, of
  // this process. An error on parameter servers, whose workers run the steps.
  virtual std::optional<int64_t> profiled_step() const { return std::nullopt; }
  virtual void on_profile(Training&, const Profile&) {}  // before on_steps(), if that is called
  // Training::learning_rate, which may have to be fetched.
  virtual bool wants_learning_rate() const { return false; }
  // Whether it does nothing but look, as one that writes a log does: it changes nothing of the training. On parameter
  // servers fit() calls on_epoch_begin, on_epoch_end and on_epoch_over of such a one in their order, but on another
  // thread and whenever that comes to it, so that the workers take the steps of the next epochs meanwhile: it is given
  // a copy of what Training said, while the variables are what they are then. What it throws ends the training with the
  // next epoch. on_train_end comes after all of that, on fit's thread, as what follows it; on_steps, before_change,
  // on_validation_begin, on_validation_end, add_logs and memory are not called there.
  virtual bool only_watches() const { return false; }
  // Before somebody else than a step changes variables (Training::before_change; averages that take the place of values
  // for validation): whoever saves them ends it now.
  virtual void before_change(Training&) {}
  // Around the evaluation of validation data. The second one comes to all whose first one has returned, also if the
  // evaluation or another callback fails.
  virtual void on_validation_begin(Training&) {}
  virtual void on_validation_end(Training&) {}
  // Its own numbers of an epoch, before everybody sees them. One that changes what fit() has measured is an error.
  virtual void add_logs(Training&, Logs&) {}
  // Their names, of a callback that has add_logs(). Known, they are among Training::numbers; nothing: they are not.
  virtual std::optional<std::vector<std::string>> added_names() const { return std::nullopt; }
  virtual void on_epoch_end(Training&, const Logs&) {}
  virtual void on_epoch_over(Training&) {}  // after on_epoch_end of all; of those on another thread it may be under way
  virtual void on_train_end(Training&, const Logs&) {}
  virtual void on_train_over(Training&) {}  // after on_train_end of all, if none has failed
  virtual void on_train_done(Training&) {}  // likewise after on_train_over: nothing is left that would be taken again
  // Where it saves checkpoints and removes older ones, which nobody else may do there: two of one training with the
  // same directory are an error when fit() begins. Empty: nowhere.
  virtual std::string checkpoint_directory() const { return {}; }
  virtual void on_train_left() {}  // fit() is left, after an error, too; throws nothing
  // What a training that goes on after a loss of the job needs of the one before; a text of another kind is passed
  // over.
  virtual std::string memory() const { return {}; }
  virtual void remember(const std::string&) {}
  // How what is still being written ends that memory() takes for written, such as a checkpoint; not valid: nothing is.
  // Of several processes that train in step the chief's counts.
  virtual std::shared_future<Status> being_written() const { return {}; }
};

// A list of them: {EarlyStopping({.patience = 3}), CsvLogger("log.csv")}.
class Callbacks {
 public:
  class Any {
   public:
    template <std::derived_from<Callback> T>
    Any(T callback)  // NOLINT: a callback is any callback
        : callback_(std::make_shared<T>(std::move(callback))), adds_nothing_(inherits_add_logs<T>()) {}
    template <std::derived_from<Callback> T>
    Any(std::shared_ptr<T> callback) : callback_(std::move(callback)) {}  // NOLINT
    Callback& operator*() const { return *callback_; }
    Callback* operator->() const { return callback_.get(); }
    std::optional<std::vector<std::string>> added_names() const {
      return adds_nothing_ ? std::vector<std::string>() : callback_->added_names();
    }

   private:
    template <class T>
    static constexpr bool inherits_add_logs() {
      if constexpr (requires { &T::add_logs; })
        return std::is_same_v<decltype(&T::add_logs), decltype(&Callback::add_logs)>;
      return false;
    }

    std::shared_ptr<Callback> callback_;
    bool adds_nothing_ = false;  // as far as its type says
  };

  Callbacks() = default;
  Callbacks(std::initializer_list<Any> callbacks) : all_(callbacks) {}
  void add(Any callback) { all_.push_back(std::move(callback)); }

  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<Any> all_;
};

}  // namespace muster
