#include "muster/fit/callbacks/backup_and_restore.h"

#include <ATen/ops/scalar_tensor.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/callbacks/make_directory.h"
#include "muster/fit/model.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/train/checkpoints.h"
#include "muster/train/preemption.h"

namespace muster {
namespace {

// In a backup: how many have ended, and what the callback of a number remembers.
constexpr const char* kEpochs = "fit.epochs";
constexpr const char* kSteps = "fit.steps";
constexpr const char* kStopped = "fit.stopped";  // there, if the training had come to its end
constexpr const char* kPlace = "fit.place";      // in the data
constexpr const char* kMemory = "fit.callback.";

// That had ended in this backup; nothing: it is none.
std::optional<int> epochs_in(const std::string& counted) {
  int epochs = 0;
  if (!absl::SimpleAtoi(counted, &epochs) || epochs < 0) return std::nullopt;
  return epochs;
}

Error no_backup(const std::string& directory) {
  return failed_precondition("BackupAndRestore: the checkpoint in ", directory,
                             " is no backup of fit(); expected a directory of its own");
}

// The newest that is whole. Nothing is said of others: restore() does.
std::optional<CheckpointIndex> newest_index(const CheckpointDirectory& directory) {
  std::vector<Checkpoint> left = directory.present();
  for (; !left.empty(); left.pop_back()) {
    try {
      return directory.index(left.back().step);
    } catch (const Error& error) {  // somebody else may have removed it
      if (error.code() != StatusCode::kDataLoss && error.code() != StatusCode::kNotFound) throw;
    }
  }
  return std::nullopt;
}

// Before a variable has its values.
void refuse_others(const std::string& directory) {
  const std::optional<CheckpointIndex> latest = newest_index(CheckpointDirectory(directory));
  if (!latest) return;
  const auto counted = latest->metadata.find(kEpochs);
  if (counted == latest->metadata.end() || !epochs_in(counted->second)) throw no_backup(directory);
}

// One that has failed is no reason to end without the last, which may be saved: not if the checkpoint of another
// callback has failed that both know of.
void wait_for_earlier_ones(Checkpoints& backups) {
  try {
    backups.wait_until_written();
  } catch (const Error& error) {
    MUSTER_LOG(error) << "BackupAndRestore: an earlier backup was not saved: " << error.what();
  }
}

// Only what fit() has saved there: the directory may have other things in it, and may be where a disk is mounted.
void remove_backups(const std::string& directory) {
  try {
    CheckpointDirectory backups(directory);
    for (const Checkpoint& each : backups.all()) {
      if (backups.index(each.step).metadata.contains(kEpochs)) backups.remove(each.step);
    }
    backups.remove_remains();  // of a job that was killed: one that goes on after its last epoch saves none
  } catch (const Error& error) {
    MUSTER_LOG(warning) << "BackupAndRestore: the backup in " << directory << " stays: " << error.what();
  }
  std::error_code not_empty;
  std::filesystem::remove(directory, not_empty);
}

}  // namespace

BackupAndRestore::BackupAndRestore(BackupAndRestoreOptions options) : options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("BackupAndRestore: no directory");
}

void BackupAndRestore::on_train_begin(Training& training) {
  checkpoints_ = std::make_shared<Checkpoints>(
      training.model.strategy(),
      CheckpointsOptions{.directory = options_.directory, .keep = 1, .incremental = options_.incremental});
  make_directory("BackupAndRestore", options_.directory, training.model.strategy());
  checkpoints_->check_directory();
  refuse_others(options_.directory);
  waited_for_.clear();
  if (options_.preemption) preemption_ = std::make_shared<Preemption>(training.model.strategy(), *checkpoints_);
  if (!checkpoints_->restore({.may_be_none = true})) return;
  checkpoints_->finish_restore();
  std::map<std::string, std::string> saved = checkpoints_->metadata();
  const std::optional<int> epochs = epochs_in(saved[kEpochs]);
  if (!epochs) throw no_backup(options_.directory);  // an older one, in the place of one that is damaged
  training.epoch = *epochs;
  training.stop = !saved[kStopped].empty();
  int64_t steps = 0;
  if (absl::SimpleAtoi(saved[kSteps], &steps)) training.steps = steps;
  training.begin_at = saved[kPlace];
  for (size_t i = 0; i < training.memories().size(); ++i) {
    training.remembered.push_back(saved[kMemory + std::to_string(i)]);
  }
  if (!training.model.strategy().is_chief()) return;
  if (training.stop || training.epoch >= training.epochs) {
    MUSTER_LOG(info) << "fit had ended with epoch " << training.epoch << " of " << training.epochs;
  } else {
    MUSTER_LOG(info) << "fit goes on with epoch " << training.epoch + 1 << " of " << training.epochs;
  }
}

void BackupAndRestore::before_change(Training&) {
  if (checkpoints_) checkpoints_->wait_until_written();
}

BackupAndRestore::Next BackupAndRestore::next(const Training& training) const {
  const Strategy& strategy = training.model.strategy();
  // Where it is stored between two steps, only for what others save: to show it then takes a moment.
  const auto goes_on = [](const std::shared_future<Status>& each) {
    return each.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  };
  Next here{.would_wait = strategy.saved()->in_step() ? std::ranges::any_of(waited_for_, goes_on)
                                                      : checkpoints_->save_is_under_way(),
            .earlier = training.being_written()};
  if (strategy.across().alone()) return here;
  // Only the chief writes, and a callback may write nowhere else: the others take part in the same calls as it.
  const CollectiveCall as_chief{.kind = CollectiveKind::kBroadcast, .purpose = "BackupAndRestore"};
  const auto number = [](bool is_so) { return at::scalar_tensor(is_so ? 1 : 0, at::kLong); };
  const std::vector<at::Tensor> agreed =
      strategy.across().make_one(as_chief, {number(here.would_wait), number(!here.earlier.empty())});
  if (strategy.is_chief()) return here;
  Next there{.would_wait = agreed[0].item<int64_t>() != 0, .earlier = {}};
  if (agreed[1].item<int64_t>() != 0) {
    std::promise<Status> of_the_chief;
    of_the_chief.set_value(Status());
    there.earlier.push_back(of_the_chief.get_future().share());
  }
  return there;
}

void BackupAndRestore::on_epoch_over(Training& training) {
  const bool told_to_end = preemption_ && !training.stop && preemption_->somebody_was_told();
  const bool last = told_to_end || training.stop || training.epoch + 1 >= training.epochs;
  // The workers do not wait for a disk that is slower than they are: the next one takes the place of this.
  Next upcoming = next(training);
  if (!last && upcoming.would_wait) return;
  std::map<std::string, std::string> metadata{{kEpochs, std::to_string(training.epoch + 1)},
                                              {kSteps, std::to_string(training.steps)}};
  if (training.stop) metadata[kStopped] = "yes";
  if (const std::string place = training.place_in_data(); !place.empty()) metadata[kPlace] = place;
  const std::vector<std::string> memories = training.memories();
  for (size_t i = 0; i < memories.size(); ++i) {
    if (!memories[i].empty()) metadata[kMemory + std::to_string(i)] = memories[i];
  }
  if (told_to_end) wait_for_earlier_ones(*checkpoints_);
  waited_for_ = std::move(upcoming.earlier);
  checkpoints_->save_between_steps(training.epoch + 1, metadata, waited_for_);
  if (!told_to_end) return;
  checkpoints_->wait_until_written();  // who is told that it is saved may end at once
  training.preempted = training.epoch + 1 < training.epochs;
  training.stop = true;
  if (training.preempted && training.model.strategy().is_chief()) {
    MUSTER_LOG(info) << "fit was told to end: epoch " << training.epoch + 1 << " of " << training.epochs
                     << " is saved in " << options_.directory << ", and it goes on from there when it is started again";
  }
}

void BackupAndRestore::on_train_end(Training&, const Logs&) { checkpoints_->wait(); }

// Not before the others have ended: who fails then, or is killed, goes on from the backup.
void BackupAndRestore::on_train_done(Training& training) {
  if (training.preempted) return;
  training.model.strategy().saved()->end_filling();  // with values of a backup that is no more
  if (training.model.strategy().is_chief()) remove_backups(options_.directory);
}

void BackupAndRestore::on_train_left() { preemption_.reset(); }

}  // namespace muster
