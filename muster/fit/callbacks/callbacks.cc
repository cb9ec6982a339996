#include "muster/fit/callbacks/callbacks.h"

#include <ATen/ops/scalar_tensor.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/callbacks/make_directory.h"
#include "muster/fit/callbacks/rows_on_demand.h"
#include "muster/fit/exported/export_model.h"
#include "muster/fit/model.h"
#include "muster/fit/tensorboard/summary_writer.h"
#include "muster/runtime/executor/profile.h"
#include "muster/train/checkpoints.h"
#include "muster/train/expect_option.h"

namespace muster {
namespace {

constexpr const char* kBest = "fit.best.";  // in a checkpoint: the best of this number so far

// Those of the model and, where the optimizer keeps averages, what these have more: so averages are restored, too.
std::vector<Variable> weights_of(const Model& model) {
  std::vector<Variable> all = model.variables().all();
  const std::vector<Variable> more = model.optimizer().averages_less_values();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The best of a number that a checkpoint in there knows of, the newest first; not a number if none does.
double best_in(const CheckpointDirectory& directory, const std::string& monitor) {
  double best = std::numeric_limits<double>::quiet_NaN();
  try {
    if (const std::optional<CheckpointIndex> latest = directory.latest_index()) {
      const auto known = latest->metadata.find(kBest + monitor);
      if (known != latest->metadata.end() && absl::SimpleAtod(known->second, &best)) return best;
    }
  } catch (const Error& error) {
    MUSTER_LOG(warning) << "ModelCheckpoint: what was the best is not known: " << error.what();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(options_.monitor, options_.better, options_.min_delta) {
  constexpr const char* kWhose = "EarlyStopping";
  expect_option(options_.min_delta >= 0, kWhose, "min_delta", options_.min_delta, "0 or more");
  expect_option(options_.patience >= 0, kWhose, "patience", options_.patience, "0 or more");
  expect_option(options_.start_from_epoch >= 0, kWhose, "start_from_epoch", options_.start_from_epoch, "0 or more");
  if (options_.baseline) {
    expect_option(!std::isnan(*options_.baseline), kWhose, "baseline", *options_.baseline, "a number");
  }
}

void EarlyStopping::on_train_begin(Training& training) {
  *this = EarlyStopping(options_);
  best_.expect_in(training, "EarlyStopping");
  if (!options_.restore_best_weights) return;
  for (const Variable& variable : weights_of(training.model)) {
    if (!has_rows_on_demand(variable)) continue;
    throw invalid_argument("EarlyStopping: restore_best_weights would make all rows of \"", variable.name(),
                           "\", which are made on demand; expected ModelCheckpoint with .monitor = \"",
                           options_.monitor, "\" beside it, and Checkpoints::restore() after the training");
  }
}

void EarlyStopping::on_epoch_end(Training& training, const Logs& logs) {
  if (training.epoch < options_.start_from_epoch) return;
  const bool improves = best_.improves(logs, "EarlyStopping");
  if (improves && options_.restore_best_weights) {
    best_weights_.clear();
    best_epoch_ = training.epoch + 1;
    for (const Variable& variable : weights_of(training.model)) {
      best_weights_.push_back(variable.value().detach().clone());
    }
  }
  // As Keras has it: what becomes better may go on, though it counts as waiting as long as the baseline is not reached.
  ++waited_;
  if (improves) {
    if (!options_.baseline || best_.better(*best_.best(), *options_.baseline)) waited_ = 0;
    return;
  }
  if (waited_ < options_.patience) return;
  training.stop = true;
  if (!training.model.strategy().is_chief()) return;
  MUSTER_LOG(info) << "fit ends with epoch " << training.epoch + 1 << ": " << best_.monitor() << " is no better for "
                   << waited_ << (waited_ == 1 ? " epoch" : " epochs");
}

void EarlyStopping::on_train_end(Training& training, const Logs&) {
  if (best_weights_.empty()) return;
  const std::vector<at::Tensor> best = std::exchange(best_weights_, {});
  // The last epoch was the best, or the next job goes on from a backup of the last one.
  if (best_epoch_ == training.epoch || training.preempted) return;
  std::exception_ptr not_saved;
  try {
    training.before_change();  // the last epoch may still be being saved, and is to be saved as it was
  } catch (...) {
    not_saved = std::current_exception();
  }
  std::vector<Variable> variables = weights_of(training.model);
  for (size_t i = 0; i < best.size(); ++i) variables[i].assign(best[i]);
  if (training.model.strategy().is_chief()) {
    MUSTER_LOG(info) << "the weights of epoch " << best_epoch_ << ", of the best " << best_.monitor() << ", are back";
  }
  if (not_saved) std::rethrow_exception(not_saved);
}

std::string EarlyStopping::memory() const { return best_.memory("EarlyStopping", {waited_}); }

void EarlyStopping::remember(const std::string& memory) {
  const std::vector<int64_t> waited = best_.remember("EarlyStopping", memory, 1);
  if (!waited.empty()) waited_ = static_cast<int>(waited[0]);
  if (!options_.restore_best_weights || !best_.best()) return;
  MUSTER_LOG(warning)
      << "EarlyStopping: the weights of the best " << best_.monitor() << " so far, " << *best_.best()
      << ", went with the job that was lost; the best of the epochs from here on counts. A ModelCheckpoint with "
      << ".monitor = \"" << best_.monitor() << "\" keeps the best of all";
  best_ = BestSoFar(options_.monitor, options_.better, options_.min_delta);
}

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("ModelCheckpoint: no directory");
  if (!options_.monitor.empty()) best_.emplace(options_.monitor, options_.better);
}

void ModelCheckpoint::on_train_begin(Training& training) {
  if (best_) best_->expect_in(training, "ModelCheckpoint");
  checkpoints_ = std::make_shared<Checkpoints>(
      training.model.strategy(),
      CheckpointsOptions{.directory = options_.directory, .keep = options_.keep, .incremental = options_.incremental});
  if (!options_.example_inputs.empty()) {
    metadata_[kExportedModelKey] =
        exported_text(training.model, options_.example_inputs, {.inputs = options_.input_names});
  }
  make_directory("ModelCheckpoint", options_.directory, training.model.strategy());
  checkpoints_->check_directory();
  went_on_ = false;
  // A job that goes on in a directory counts on, as the one who writes sees it.
  const CheckpointDirectory directory(options_.directory);
  const std::vector<Checkpoint> present = directory.present();
  const at::Tensor last = at::scalar_tensor(present.empty() ? 0 : present.back().step, at::kLong);
  at::Tensor best = at::scalar_tensor(std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  if (best_ && training.model.strategy().is_chief()) best.fill_(best_in(directory, best_->monitor()));
  const CollectiveCall as_chief{.kind = CollectiveKind::kBroadcast, .purpose = "ModelCheckpoint"};
  const std::vector<at::Tensor> agreed = training.model.strategy().across().make_one(as_chief, {last, best});
  first_step_ = agreed[0].item<int64_t>();
  best_before_ = agreed[1].item<double>();
}

void ModelCheckpoint::on_epoch_begin(Training& training) {
  if (best_ && !best_->best() && training.epoch > 0 && !std::isnan(best_before_)) best_->set_best(best_before_);
}

void ModelCheckpoint::before_change(Training&) {
  if (checkpoints_) checkpoints_->wait_until_written();  // none before the training has begun for it
}

void ModelCheckpoint::on_epoch_end(Training& training, const Logs& logs) {
  if (best_ && !best_->improves(logs, "ModelCheckpoint")) return;
  const int64_t step = first_step_ + training.steps;
  // What a job has saved that was lost before its backup is saved again.
  if (went_on_ && training.model.strategy().is_chief()) {
    CheckpointDirectory directory(options_.directory);
    for (const Checkpoint& each : directory.present()) {
      if (each.step == step) directory.remove(step);
    }
  }
  if (best_) metadata_[kBest + best_->monitor()] = best_->best() ? in_all_digits(*best_->best()) : "none";
  options_.while_training ? checkpoints_->save_async(step, metadata_)
                          : checkpoints_->save_between_steps(step, metadata_);
}

std::string ModelCheckpoint::memory() const {
  return best_.value_or(BestSoFar("", Better::kAuto)).memory("ModelCheckpoint", {first_step_});
}

void ModelCheckpoint::remember(const std::string& memory) {
  BestSoFar best = best_.value_or(BestSoFar("", Better::kAuto));
  const std::vector<int64_t> first_step = best.remember("ModelCheckpoint", memory, 1);
  if (first_step.empty()) return;
  if (best_) best_ = best;
  first_step_ = first_step[0];
  went_on_ = true;
}

std::shared_future<Status> ModelCheckpoint::being_written() const {
  return checkpoints_ ? checkpoints_->being_saved() : std::shared_future<Status>();
}

void ModelCheckpoint::on_train_end(Training&, const Logs&) { checkpoints_->wait(); }

TensorBoard::TensorBoard(TensorBoardOptions options) : options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("TensorBoard: no directory");
  if (options_.histogram_freq < 0) {
    throw invalid_argument("TensorBoard: histogram_freq ", options_.histogram_freq, ", expected a number of epochs");
  }
  if (options_.profile_step && *options_.profile_step < 1) {
    throw invalid_argument("TensorBoard: profile_step ", *options_.profile_step, ", expected a step, from 1 on");
  }
}

void TensorBoard::on_train_begin(Training& training) {
  if (!training.model.strategy().is_chief()) return;
  train();  // what cannot be written is an error now, and not after an epoch
  for (const Variable& variable : training.model.variables().all()) {
    if (options_.histogram_freq == 0 || !has_rows_on_demand(variable)) continue;
    MUSTER_LOG(info) << "TensorBoard: there is no histogram of \"" << variable.name()
                     << "\", whose rows are made on demand: it would make all of them";
  }
  if (options_.hparams.empty()) return;
  session_ = std::make_shared<SummaryWriter>(options_.directory);
  session_->begin_session(options_.hparams);
  session_->flush();
}

SummaryWriter& TensorBoard::train() {
  if (!train_) train_ = std::make_shared<SummaryWriter>(options_.directory + "/train");
  return *train_;
}

void TensorBoard::on_profile(Training& training, const Profile& profile) {
  const std::string directory = options_.directory + "/profile";
  const std::string path = str_cat(directory, "/worker-", training.model.strategy().across().rank, ".json");
  std::error_code refused;  // said by the file, which cannot be made then
  std::filesystem::create_directories(directory, refused);
  const std::string trace = profile.chrome_trace();
  std::ofstream out(path, std::ios::trunc);  // right before errno is looked at
  out << trace << "\n" << std::flush;
  if (!out) {
    throw unavailable("TensorBoard: the profile of a step \"", path, "\" cannot be written: ", std::strerror(errno));
  }
}

void TensorBoard::on_epoch_end(Training& training, const Logs& logs) {
  if (!training.model.strategy().is_chief()) return;
  std::map<std::string, double> of_training, of_validation;
  for (const auto& [name, value] : logs) {
    const bool validation = name.starts_with("val_");
    (validation ? of_validation : of_training)["epoch_" + (validation ? name.substr(4) : name)] = value;
  }
  if (training.learning_rate) of_training.emplace("epoch_learning_rate", *training.learning_rate);
  train().scalars(of_training, training.epoch);
  if (options_.write_graph && !graph_written_) {
    if (const std::optional<Program> program = training.program()) train().graph(*program);
    graph_written_ = true;
  }
  if (options_.histogram_freq > 0 && training.epoch % options_.histogram_freq == 0) {
    for (const Variable& variable : training.model.variables().all()) {
      if (has_rows_on_demand(variable)) continue;
      train().histogram("weights/" + variable.name(), variable.value(), training.epoch);
    }
  }
  train().flush();
  if (of_validation.empty()) return;
  if (!validation_) validation_ = std::make_shared<SummaryWriter>(options_.directory + "/validation");
  validation_->scalars(of_validation, training.epoch);
  validation_->flush();
}

void TensorBoard::on_train_end(Training& training, const Logs&) {
  if (training.model.strategy().is_chief() && options_.profile_step.value_or(0) > training.steps) {
    MUSTER_LOG(warning) << "TensorBoard: there is no profile of step " << *options_.profile_step
                        << ", since there were " << training.steps << " steps";
  }
  if (!session_) return;
  session_->end_session();
  session_->flush();
}

void TerminateOnNaN::on_steps(Training& training, const Logs& logs) {
  const double loss = value_of(logs, "loss", "TerminateOnNaN");
  if (std::isfinite(loss)) return;
  training.stop = true;
  if (!training.model.strategy().is_chief()) return;
  MUSTER_LOG(warning) << "fit: the loss is " << loss << " after step " << training.steps << ", so it ends";
}

void TerminateOnNaN::on_epoch_end(Training& training, const Logs& logs) {
  const double loss = value_of(logs, "loss", "TerminateOnNaN");
  if (training.stop || std::isfinite(loss)) return;
  training.stop = true;
  if (!training.model.strategy().is_chief()) return;
  MUSTER_LOG(warning) << "fit: the loss of epoch " << training.epoch + 1 << " is " << loss << ", so it ends";
}

LambdaCallback::LambdaCallback(LambdaCallbackOptions options) : options_(std::move(options)) {
  if (options_.only_watches && options_.add_logs) {
    throw invalid_argument("LambdaCallback: add_logs of one that only_watches; expected none, or one that does more");
  }
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
void LambdaCallback::add_logs(Training& training, Logs& logs) {
  if (options_.add_logs) options_.add_logs(training, logs);
}
std::optional<std::vector<std::string>> LambdaCallback::added_names() const {
  return options_.add_logs ? std::nullopt : std::optional<std::vector<std::string>>(std::in_place);
}
void LambdaCallback::on_epoch_end(Training& training, const Logs& logs) {
  if (options_.on_epoch_end) options_.on_epoch_end(training, logs);
}
void LambdaCallback::on_epoch_over(Training& training) {
  if (options_.on_epoch_over) options_.on_epoch_over(training);
}
void LambdaCallback::on_train_end(Training& training, const Logs& logs) {
  if (options_.on_train_end) options_.on_train_end(training, logs);
}

}  // namespace muster
