// The callbacks that most training needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/fit/callbacks/backup_and_restore.h"
#include "muster/fit/callbacks/best_so_far.h"
#include "muster/fit/callbacks/callback.h"
#include "muster/fit/callbacks/csv_logger.h"
#include "muster/fit/tensorboard/hparams.h"
#include "muster/train/incremental_options.h"

namespace muster {

class Checkpoints;
class SummaryWriter;

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  Better better = Better::kAuto;
  double min_delta = 0;              // what counts as better
  int patience = 0;                  // epochs that may be no better before the last one
  int start_from_epoch = 0;          // those before it may be as they like
  std::optional<double> baseline{};  // what is better, but not than this, counts as no better, and is never the last
  // When the training ends, unless it was preempted. They are kept in this process meanwhile, which needs as much
  // memory as the model: a job that is lost loses them, so the best begins anew where BackupAndRestore goes on.
  // Error{kInvalidArgument} of fit() where a table makes its rows on demand.
  bool restore_best_weights = false;
};
class EarlyStopping : public Callback {
 public:
  // Throws Error{kInvalidArgument} for a difference, a patience or a first epoch below 0, or what is no number.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  void on_train_begin(Training& training) override;
  void on_epoch_end(Training& training, const Logs& logs) override;
  void on_train_end(Training& training, const Logs& logs) override;
  std::string memory() const override;
  void remember(const std::string& memory) override;

 private:
  EarlyStoppingOptions options_;
  BestSoFar best_;
  int waited_ = 0, best_epoch_ = 0;
  std::vector<at::Tensor> best_weights_{};
};

struct ModelCheckpointOptions {
  std::string directory;
  int keep = 3;  // the newest ones
  std::optional<IncrementalOptions> incremental{};
  std::string monitor{};  // not empty: only epochs with a better one than all before are saved
  Better better = Better::kAuto;
  bool while_training = false;  // under every strategy, with variables of different moments: Checkpoints::save_async
  // Inputs of the model. Not empty: its forward program is in the checkpoints, so that `muster export` can make a model
  // of them. Of a forward() that takes Features `input_names` are their names.
  std::vector<at::Tensor> example_inputs{};
  std::vector<std::string> input_names{};
};
// Saves all variables of the model's strategy after an epoch, as Checkpoints::save_between_steps does, so that
// parameter servers save while the next epoch begins: the step is that of the training. A save that has failed is an
// error of the epoch after it, or of the end; a directory that a server may not use is one of the beginning. A training
// that does not begin with the first epoch goes on with the best number of the directory. Saves wait for each other.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options);
  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void before_change(Training& training) override;  // waits for a save
  void on_epoch_end(Training& training, const Logs& logs) override;
  void on_train_end(Training& training, const Logs& logs) override;
  std::string checkpoint_directory() const override { return options_.directory; }
  std::string memory() const override;
  void remember(const std::string& memory) override;
  std::shared_future<Status> being_written() const override;

 private:
  ModelCheckpointOptions options_;
  std::optional<BestSoFar> best_;
  std::shared_ptr<Checkpoints> checkpoints_;
  int64_t first_step_ = 0;                                         // steps of earlier jobs
  double best_before_ = std::numeric_limits<double>::quiet_NaN();  // theirs
  bool went_on_ = false;
  std::map<std::string, std::string> metadata_{};
};

struct TensorBoardOptions {
  std::string directory = "logs";
  int histogram_freq = 0;   // the model's variables after every so many epochs, from the first on; 0: never
  bool write_graph = true;  // what a step does, after the first epoch
  // When each op of that step began and ended, counted from 1: profile/worker-N.json, a Chrome trace, of each process.
  std::optional<int64_t> profile_step{};
  // Not empty: the directory is a session, a row in the table of hyperparameters. TensorBoard finds its metrics if it
  // is shown a directory above: several sessions are logs/first, logs/second, and so on.
  Hparams hparams{};
};
// Events for TensorBoard, under Keras' names: after each epoch epoch_loss, epoch_learning_rate and so on in train/,
// those of the validation data in validation/. Written by the chief; takes no time within epochs. The histogram of a
// variable is weights/NAME; variables are fetched one after the other: as much as a checkpoint. Tables on demand have
// none. It only watches: on parameter servers a histogram is of the variable as it is while the next epoch changes it.
class TensorBoard : public Callback {
 public:
  // Throws Error{kInvalidArgument} for no directory, or numbers of epochs or steps that are none.
  explicit TensorBoard(TensorBoardOptions options = {});
  bool only_watches() const override { return true; }
  bool wants_learning_rate() const override { return true; }
  std::optional<int64_t> profiled_step() const override { return options_.profile_step; }
  void on_train_begin(Training& training) override;
  void on_profile(Training& training, const Profile& profile) override;
  void on_epoch_end(Training& training, const Logs& logs) override;
  void on_train_end(Training& training, const Logs& logs) override;

 private:
  SummaryWriter& train();

  TensorBoardOptions options_;
  std::shared_ptr<SummaryWriter> session_, train_, validation_;
  bool graph_written_ = false;
};

// Ends the training when the loss is no number any more: with the step where that happens, or with the epoch on
// parameter servers and in several processes.
class TerminateOnNaN : public Callback {
 public:
  void on_steps(Training& training, const Logs& logs) override;
  bool uses_steps() const override { return true; }
  void on_epoch_end(Training& training, const Logs& logs) override;
};

struct LambdaCallbackOptions {
  std::function<void(Training&)> on_train_begin{};
  std::function<void(Training&)> on_epoch_begin{};
  std::function<void(Training&, const Logs&)> on_steps{};
  std::function<void(Training&, Logs&)> add_logs{};
  std::function<void(Training&, const Logs&)> on_epoch_end{};
  std::function<void(Training&)> on_epoch_over{};
  std::function<void(Training&, const Logs&)> on_train_end{};
  bool only_watches = false;  // as Callback::only_watches has it
};
class LambdaCallback : public Callback {
 public:
  // Throws Error{kInvalidArgument} for one that only watches and has add_logs.
  explicit LambdaCallback(LambdaCallbackOptions options);
  bool only_watches() const override { return options_.only_watches; }
  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void on_steps(Training& training, const Logs& logs) override;
  bool wants_steps() const override { return options_.on_steps != nullptr; }
  void add_logs(Training& training, Logs& logs) override;
  std::optional<std::vector<std::string>> added_names() const override;
  void on_epoch_end(Training& training, const Logs& logs) override;
  void on_epoch_over(Training& training) override;
  void on_train_end(Training& training, const Logs& logs) override;

 private:
  LambdaCallbackOptions options_;
};

}  // namespace muster
