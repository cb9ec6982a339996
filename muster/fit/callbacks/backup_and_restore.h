// A job that was lost goes on where it was.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/fit/callbacks/callback.h"
#include "muster/train/incremental_options.h"

namespace muster {

class Checkpoints;
class Preemption;

struct BackupAndRestoreOptions {
  std::string directory;
  // A SIGTERM to any process that calls fit() ends that of all after an epoch: see History::preempted(). On parameter
  // servers that is the chief: others take the steps of a worker that ends, and a server takes its variables along.
  bool preemption = false;
  std::optional<IncrementalOptions> incremental{};  // of large tables only the rows that have changed are saved
};
// Saves after each epoch, as ModelCheckpoint does, and goes on after the last one saved when a job is started again:
// callbacks know what they knew then, if they are the same in the same order. On parameter servers nobody waits for a
// slow disk: epochs that end while one is being saved, except the last, are left out. What callbacks know in a backup
// is true: it appears when their checkpoints, which ModelCheckpoint may save beside the training, are on the disk, and
// under every strategy epochs that end before that are left out. If one of these fails its error ends the training, and
// the backup before stays. A job that ends takes its backup away, and the directory if nothing else is in it. With
// steps_per_epoch one process goes on in the data, too. Limit: several, parameter servers, and what a function makes, a
// generator too, begin with the first element again.
class BackupAndRestore : public Callback {
 public:
  // Throws Error{kInvalidArgument} for no directory.
  explicit BackupAndRestore(BackupAndRestoreOptions options);
  void on_train_begin(Training& training) override;
  void before_change(Training& training) override;  // waits for a save
  void on_epoch_over(Training& training) override;
  void on_train_end(Training& training, const Logs& logs) override;
  void on_train_done(Training& training) override;
  std::string checkpoint_directory() const override { return options_.directory; }
  void on_train_left() override;  // a signal is the program's again

 private:
  struct Next {
    bool would_wait;  // for a disk
    std::vector<std::shared_future<Status>> earlier;
  };
  Next next(const Training& training) const;  // as the chief has it, at all processes

  BackupAndRestoreOptions options_;
  std::shared_ptr<Checkpoints> checkpoints_;
  std::shared_ptr<Preemption> preemption_;                // uses the checkpoints
  std::vector<std::shared_future<Status>> waited_for_{};  // by the last backup
};

}  // namespace muster
