#include "muster/fit/callbacks/rate_callbacks.h"

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/callbacks/rows_on_demand.h"
#include "muster/fit/model.h"
#include "muster/train/expect_option.h"

namespace muster {
namespace {

// The rate that is seen is that of the schedule, the one that is set is that which it begins with.
void refuse_schedule(const Training& training, const char* callback) {
  if (!training.model.optimizer().has_schedule()) return;
  throw invalid_argument(callback, ": the optimizer's learning rate follows a schedule; expected a number, or no ",
                         callback);
}

}  // namespace

LearningRateScheduler::LearningRateScheduler(Rule rule) : rule_(std::move(rule)) {
  if (!rule_) throw invalid_argument("LearningRateScheduler: no function, expected one from an epoch to a rate");
}

void LearningRateScheduler::on_train_begin(Training& training) { refuse_schedule(training, "LearningRateScheduler"); }

void LearningRateScheduler::on_epoch_begin(Training& training) {
  const Optimizer& optimizer = training.model.optimizer();
  const double before = optimizer.learning_rate(), now = rule_(training.epoch, before);
  if (now == before) return;
  training.before_change();
  optimizer.set_learning_rate(now);
}

void LearningRateScheduler::add_logs(Training& training, Logs& logs) {
  logs.set("learning_rate", training.model.optimizer().learning_rate());
}

ReduceLrOnPlateau::ReduceLrOnPlateau(ReduceLrOnPlateauOptions options)
    : options_(std::move(options)), best_(options_.monitor, options_.better, options_.min_delta) {
  constexpr const char* kWhose = "ReduceLrOnPlateau";
  const bool reduces = options_.factor > 0 && options_.factor < 1;
  expect_option(reduces, kWhose, "factor", options_.factor, "more than 0 and less than 1");
  expect_option(options_.patience >= 0, kWhose, "patience", options_.patience, "0 or more");
  expect_option(options_.min_delta >= 0, kWhose, "min_delta", options_.min_delta, "0 or more");
  expect_option(options_.cooldown >= 0, kWhose, "cooldown", options_.cooldown, "0 or more");
  expect_option(options_.min_rate >= 0, kWhose, "min_rate", options_.min_rate, "0 or more");
}

void ReduceLrOnPlateau::on_train_begin(Training& training) {
  refuse_schedule(training, "ReduceLrOnPlateau");
  *this = ReduceLrOnPlateau(options_);
  best_.expect_in(training, "ReduceLrOnPlateau");
}

void ReduceLrOnPlateau::add_logs(Training& training, Logs& logs) {
  logs.set("learning_rate", training.model.optimizer().learning_rate());
}

void ReduceLrOnPlateau::on_epoch_end(Training& training, const Logs& logs) {
  const bool cools = cooling_ > 0;
  if (cools) {
    --cooling_;
    waited_ = 0;
  }
  if (best_.improves(logs, "ReduceLrOnPlateau")) {
    waited_ = 0;
    return;
  }
  if (cools || ++waited_ < options_.patience) return;
  waited_ = 0;
  const Optimizer& optimizer = training.model.optimizer();
  const double before = optimizer.learning_rate(), after = std::max(before * options_.factor, options_.min_rate);
  if (after >= before) return;
  training.before_change();
  optimizer.set_learning_rate(after);
  cooling_ = options_.cooldown;
  if (training.model.strategy().is_chief()) {
    MUSTER_LOG(info) << "epoch " << training.epoch + 1 << ": " << options_.monitor << " is no better for "
                     << options_.patience << (options_.patience == 1 ? " epoch" : " epochs")
                     << "; the learning rate is " << after << " now";
  }
}

std::string ReduceLrOnPlateau::memory() const { return best_.memory("ReduceLrOnPlateau", {waited_, cooling_}); }

void ReduceLrOnPlateau::remember(const std::string& memory) {
  const std::vector<int64_t> numbers = best_.remember("ReduceLrOnPlateau", memory, 2);
  if (numbers.empty()) return;
  waited_ = static_cast<int>(numbers[0]);
  cooling_ = static_cast<int>(numbers[1]);
}

void SwapAverages::on_train_begin(Training& training) {
  validated_ = false;
  if (training.model.optimizer().keeps_averages()) return;
  throw invalid_argument("SwapAverages: the optimizer keeps no averages; UpdateOptions::average makes it keep some");
}

void SwapAverages::on_validation_begin(Training& training) {
  validated_ = true;
  training.model.optimizer().swap_averages();
}

void SwapAverages::on_validation_end(Training& training) { training.model.optimizer().swap_averages(); }

// When all have saved and restored what they save and restore: values, with the averages beside them.
void SwapAverages::on_train_over(Training& training) {
  const bool goes_on = training.preempted;  // in another process, with the values
  if (!options_.take_at_end || goes_on || training.steps == 0) return;
  const std::vector<Variable> all = training.model.variables().all();
  const auto table = std::ranges::find_if(all, has_rows_on_demand);
  if (!validated_ && table != all.end()) {  // a validation has had all made
    if (training.model.strategy().is_chief()) {
      MUSTER_LOG(warning) << "SwapAverages: the model has the values of its variables: there was no validation, and to "
                             "take the averages would make all rows of \""
                          << table->name() << "\", which are made on demand; Optimizer::take_averages() does so";
    }
    return;
  }
  training.before_change();
  training.model.optimizer().take_averages();
  if (training.model.strategy().is_chief()) {
    MUSTER_LOG(info) << "SwapAverages: the model has the averages of its variables now"
                     << (validated_ ? ", as its validation had them" : "");
  }
}

}  // namespace muster
