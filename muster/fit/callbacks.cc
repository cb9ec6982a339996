#include "muster/fit/callbacks.h"

#include <ATen/ops/scalar_tensor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/export_model.h"
#include "muster/fit/model.h"
#include "muster/fit/summary_writer.h"
#include "muster/train/checkpoints.h"

namespace muster {
namespace {

constexpr const char* kEpochs = "fit.epochs";  // in a backup: how many have ended

// Only what fit() has saved there: the directory may have other things in it, and may be where a disk is mounted.
void remove_backups(const std::string& directory) {
  try {
    CheckpointDirectory backups(directory);
    for (const Checkpoint& each : backups.all()) {
      if (backups.index(each.step).metadata.contains(kEpochs)) backups.remove(each.step);
    }
  } catch (const Error& error) {
    MUSTER_LOG(warning) << "BackupAndRestore: the backup in " << directory << " stays: " << error.what();
  }
  std::error_code not_empty;
  std::filesystem::remove(directory, not_empty);
}

bool larger_is_better(const std::string& monitor, Better better) {
  if (better != Better::kAuto) return better == Better::kLarger;
  if (monitor.ends_with("loss") || monitor.ends_with("error")) return false;
  for (const char* word : {"accuracy", "auc", "precision", "recall", "f1", "r2", "io_u"}) {
    if (monitor.find(word) != std::string::npos) return true;
  }
  return false;
}

// As few digits as tell it from every other number.
std::string in_all_digits(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

double value_of(const Logs& logs, const std::string& name) {
  const auto found = logs.find(name);
  if (found != logs.end()) return found->second;
  throw not_found("a callback asks for \"", name, "\", but an epoch has ",
                  absl::StrJoin(logs, ", ", [](std::string* out, const auto& log) { *out += log.first; }),
                  name.starts_with("val_") ? "; validation_data gives it" : "");
}

}  // namespace

BestSoFar::BestSoFar(std::string monitor, Better better, double min_delta)
    : monitor_(std::move(monitor)), larger_(larger_is_better(monitor_, better)), min_delta_(min_delta) {}

bool BestSoFar::improves(const Logs& logs) {
  const double value = value_of(logs, monitor_);
  if (std::isnan(value)) return false;
  if (best_ && !(larger_ ? value > *best_ + min_delta_ : value < *best_ - min_delta_)) return false;
  best_ = value;
  return true;
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(options_.monitor, options_.better, options_.min_delta) {}

void EarlyStopping::on_train_begin(Training&) { *this = EarlyStopping(options_); }

void EarlyStopping::on_epoch_end(Training& training, const Logs& logs) {
  if (training.epoch < options_.start_from_epoch) return;
  if (best_.improves(logs)) {
    waited_ = 0;
    if (!options_.restore_best_weights) return;
    best_weights_.clear();
    for (const Variable& variable : training.model.variables().all()) {
      best_weights_.push_back(variable.value().detach().clone());
    }
  } else if (++waited_ >= options_.patience) {
    training.stop = true;
    if (!training.model.strategy().is_chief()) return;
    MUSTER_LOG(info) << "fit ends with epoch " << training.epoch + 1 << ": " << best_.monitor() << " is no better for "
                     << waited_ << (waited_ == 1 ? " epoch" : " epochs");
  }
}

void EarlyStopping::on_train_end(Training& training, const Logs&) {
  std::vector<Variable> variables = training.model.variables().all();
  for (size_t i = 0; i < best_weights_.size(); ++i) variables[i].assign(best_weights_[i]);
  best_weights_.clear();
}

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("ModelCheckpoint: no directory");
  if (!options_.monitor.empty()) best_.emplace(options_.monitor, options_.better);
}

void ModelCheckpoint::on_train_begin(Training& training) {
  checkpoints_ = std::make_shared<Checkpoints>(
      training.model.strategy(),
      CheckpointsOptions{.directory = options_.directory, .keep = options_.keep, .incremental = options_.incremental});
  if (!options_.example_inputs.empty()) {
    metadata_[kExportedModelKey] = exported_text(training.model, options_.example_inputs);
  }
  // A job that goes on in a directory counts on, as the one who writes sees it.
  const std::vector<Checkpoint> present = CheckpointDirectory(options_.directory).present();
  const at::Tensor last = at::scalar_tensor(present.empty() ? 0 : present.back().step, at::kLong);
  const CollectiveCall as_chief{.kind = CollectiveKind::kBroadcast, .purpose = "ModelCheckpoint"};
  first_step_ = training.model.strategy().across().make_one(as_chief, {last})[0].item<int64_t>();
}

void ModelCheckpoint::on_epoch_end(Training& training, const Logs& logs) {
  if (best_ && !best_->improves(logs)) return;
  checkpoints_->save_async(first_step_ + training.steps, metadata_);
}

void ModelCheckpoint::on_train_end(Training&, const Logs&) { checkpoints_->wait(); }

void BackupAndRestore::on_train_begin(Training& training) {
  checkpoints_ = std::make_shared<Checkpoints>(training.model.strategy(),
                                               CheckpointsOptions{.directory = options_.directory, .keep = 1});
  if (!checkpoints_->restore()) return;
  checkpoints_->finish_restore();
  const std::string epochs = checkpoints_->metadata(kEpochs);
  if (epochs.empty()) {
    throw failed_precondition("BackupAndRestore: the checkpoint in ", options_.directory,
                              " is no backup of fit(); expected a directory of its own");
  }
  training.epoch = std::stoi(epochs);
  MUSTER_LOG(info) << "fit goes on with epoch " << training.epoch + 1 << " of " << training.epochs;
}

void BackupAndRestore::on_epoch_end(Training& training, const Logs&) {
  checkpoints_->save_async(training.epoch + 1, {{kEpochs, std::to_string(training.epoch + 1)}});
}

void BackupAndRestore::on_train_end(Training& training, const Logs&) {
  checkpoints_->wait();
  training.model.strategy().saved()->end_filling();  // with values of a backup that is no more
  if (training.model.strategy().is_chief()) remove_backups(options_.directory);
}

void CsvLogger::on_train_begin(Training& training) {
  if (!training.model.strategy().is_chief()) return;
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::error_code refused;
  if (!directory.empty()) std::filesystem::create_directories(directory, refused);
  if (!std::ofstream(path_, std::ios::app)) throw unavailable("CsvLogger: \"", path_, "\" cannot be written");
}

void CsvLogger::on_epoch_end(Training& training, const Logs& logs) {
  if (!training.model.strategy().is_chief()) return;
  // A training that goes on after a backup adds to what it had written before.
  std::error_code none;
  begun_ = begun_ || (training.epoch > 0 && std::filesystem::file_size(path_, none) > 0 && !none);
  std::ofstream out(path_, begun_ ? std::ios::app : std::ios::trunc);
  if (!begun_) {
    out << "epoch";
    for (const auto& [name, value] : logs) out << "," << name;
    out << "\n";
  }
  begun_ = true;
  out << training.epoch;
  for (const auto& [name, value] : logs) out << "," << in_all_digits(value);
  out << "\n" << std::flush;
  if (!out) throw unavailable("CsvLogger: \"", path_, "\" cannot be written");
}

TensorBoard::TensorBoard(TensorBoardOptions options) : options_(std::move(options)) {
  if (options_.histogram_freq < 0) {
    throw invalid_argument("TensorBoard: histogram_freq ", options_.histogram_freq, ", expected a number of epochs");
  }
}

void TensorBoard::on_train_begin(Training& training) {
  if (options_.hparams.empty() || !training.model.strategy().is_chief()) return;
  session_ = std::make_shared<SummaryWriter>(options_.directory);
  session_->begin_session(options_.hparams);
  session_->flush();
}

SummaryWriter& TensorBoard::train() {
  if (!train_) train_ = std::make_shared<SummaryWriter>(options_.directory + "/train");
  return *train_;
}

void TensorBoard::on_epoch_end(Training& training, const Logs& logs) {
  if (!training.model.strategy().is_chief()) return;
  std::map<std::string, double> of_training, of_validation;
  for (const auto& [name, value] : logs) {
    const bool validation = name.starts_with("val_");
    (validation ? of_validation : of_training)["epoch_" + (validation ? name.substr(4) : name)] = value;
  }
  train().scalars(of_training, training.epoch);
  if (options_.write_graph && !graph_written_) {
    if (const std::optional<Program> program = training.program()) train().graph(*program);
    graph_written_ = true;
  }
  if (options_.histogram_freq > 0 && training.epoch % options_.histogram_freq == 0) {
    for (const Variable& variable : training.model.variables().all()) {
      train().histogram("weights/" + variable.name(), variable.value(), training.epoch);
    }
  }
  train().flush();
  if (of_validation.empty()) return;
  if (!validation_) validation_ = std::make_shared<SummaryWriter>(options_.directory + "/validation");
  validation_->scalars(of_validation, training.epoch);
  validation_->flush();
}

void TensorBoard::on_train_end(Training&, const Logs&) {
  if (!session_) return;
  session_->end_session();
  session_->flush();
}

void TerminateOnNaN::on_epoch_end(Training& training, const Logs& logs) {
  if (std::isfinite(value_of(logs, "loss"))) return;
  MUSTER_LOG(warning) << "fit: the loss of epoch " << training.epoch + 1 << " is " << value_of(logs, "loss")
                      << ", so it ends";
  training.stop = true;
}

void LambdaCallback::on_train_begin(Training& training) {
  if (options_.on_train_begin) options_.on_train_begin(training);
}
void LambdaCallback::on_epoch_begin(Training& training) {
  if (options_.on_epoch_begin) options_.on_epoch_begin(training);
}
void LambdaCallback::on_steps(Training& training, const Logs& logs) {
  if (options_.on_steps) options_.on_steps(training, logs);
}
void LambdaCallback::on_epoch_end(Training& training, const Logs& logs) {
  if (options_.on_epoch_end) options_.on_epoch_end(training, logs);
}
void LambdaCallback::on_train_end(Training& training, const Logs& logs) {
  if (options_.on_train_end) options_.on_train_end(training, logs);
}

}  // namespace muster
