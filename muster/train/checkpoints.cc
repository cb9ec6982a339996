#include "muster/train/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/distribute/servers/delayed_restore.h"
#include "muster/io/checkpoint_differences.h"
#include "muster/runtime/variables/variable_files.h"
#include "muster/runtime/worker/owner.h"

namespace muster {
namespace {

// What an object says of itself is in the metadata of the checkpoint, under its name and this.
constexpr std::string_view kTextOf = "object ";

SavedVariables::Only names_of(const std::map<std::string, CheckpointObject>& objects) {
  if (objects.empty()) return std::nullopt;
  std::map<std::string, std::string> names;
  for (const auto& [object, chosen] : objects) {
    std::set<std::string> its_own;  // a layer that a module has in two places is saved under the first name
    for (const auto& [name, variable] : chosen.variables()) {
      const auto& part_of = variable.state()->part_of;
      const std::string own = part_of ? part_of->name : variable.name();
      const auto [at, is_new] = names.emplace(own, name.empty() ? object : str_cat(object, "/", name));
      if (!its_own.insert(own).second || is_new) continue;
      throw invalid_argument("Checkpoints: variable \"", own, "\" is in the objects twice, as \"", at->second,
                             "\" and in \"", object, "\"");
    }
  }
  return names;
}

std::shared_future<Status> ended_with(Status status) {
  std::promise<Status> ended;
  ended.set_value(std::move(status));
  return ended.get_future().share();
}

// Of what `write` throws.
template <class Write>
Status status_of_writing(const Write& write) {
  try {
    write();
    return Status();
  } catch (...) {
    return status_of(std::current_exception());
  }
}

// A checkpoint that says that another one is on the disk cannot appear if that has failed.
void expect_written(const std::shared_future<Status>& another) {
  const Status& ended = another.get();
  if (ended.ok()) return;
  throw Error(Status(ended.code(), str_cat("a checkpoint that this one knows of was not saved: ", ended.message()),
                     ended.task(), ended.detail()));
}

// Of those that have ended.
void throw_failure_among(const Checkpoints::Endings& earlier) {
  for (const std::shared_future<Status>& each : earlier) {
    if (each.wait_for(std::chrono::seconds(0)) == std::future_status::ready) expect_written(each);
  }
}

// What to do with a checkpoint of another kind than is asked for; nothing if it is of this kind, or if nobody knows.
std::string hint_at_kind(const std::set<std::string>& variables, const std::map<std::string, CheckpointObject>& objects,
                         const std::string& directory) {
  const auto is_of = [](const std::string& variable, const std::string& object) {
    return variable == object || variable.starts_with(object + "/");
  };
  if (variables.empty()) return {};
  if (objects.empty()) {
    const bool is_model = std::ranges::all_of(variables, [&](const std::string& variable) {
      return is_of(variable, "model") || is_of(variable, "optimizer");
    });
    return is_model ? str_cat("; it looks like one of Model::save(): model.load(\"", directory, "\") takes such") : "";
  }
  for (const std::string& variable : variables) {
    for (const auto& [name, object] : objects) {
      if (is_of(variable, name)) return {};
    }
  }
  return str_cat(
      "; it has nothing of these objects: it is of others, or of all variables, as ModelCheckpoint, "
      "BackupAndRestore and Checkpoints without objects save them, which "
      "Checkpoints(model.strategy(), {.directory = \"",
      directory, "\"}).restore() takes");
}

}  // namespace

Checkpoints::Checkpoints(const Strategy& strategy, CheckpointsOptions options)
    : strategy_(strategy),
      options_(std::move(options)),
      id_(random_id()),
      only_(names_of(options_.objects)),
      directory_(options_.directory.empty() ? "" : std::filesystem::absolute(options_.directory).string()) {
  if (options_.keep < 1) throw invalid_argument("Checkpoints: keep is ", options_.keep, ", expected 1 or more");
  if (options_.incremental && options_.incremental->most_differences < 1) {
    throw invalid_argument("Checkpoints: most_differences is ", options_.incremental->most_differences,
                           ", expected 1 or more");
  }
}

Checkpoints::~Checkpoints() {
  {
    absl::MutexLock lock(&one_mu_);
    if (saving_) log_failure(saving_->written.get());  // the other processes may be anywhere
  }
  strategy_.saved()->restorer_is_gone(this);
}

std::string Checkpoints::save(int64_t step, const Metadata& metadata) {
  absl::MutexLock lock(&one_mu_);
  wait_until_saved();
  SavedVariables& variables = *strategy_.saved();
  if (!only_) variables.check_all_used();
  const Metadata all = with_texts(metadata);
  std::string path = directory_.path_of(step);
  Status written;
  try {
    if (variables.writes()) {
      path = publish(store_all(variables.begin_save(only_), SavePace::kFull, step, all), {});
    } else {
      variables.take_part(only_);
    }
  } catch (...) {
    written = status_of(std::current_exception());
  }
  agree(step, written);
  if (!only_) variables.end_filling();
  return path;
}

void Checkpoints::check_directory() const { strategy_.saved()->check_directory(directory_.path()); }

Checkpoints::Metadata Checkpoints::with_texts(const Metadata& metadata) const {
  Metadata all = metadata;
  for (const auto& [name, object] : options_.objects) {
    if (object.is_text()) all[str_cat(kTextOf, name)] = object.save();
  }
  return all;
}

void Checkpoints::save_async(int64_t step, const Metadata& metadata) {
  absl::MutexLock lock(&one_mu_);
  begin_saving(step, metadata, Store::kMeanwhile, {});
}

void Checkpoints::begin_saving(int64_t step, const Metadata& metadata, Store when, const Endings& earlier) {
  wait_until_saved();
  SavedVariables& variables = *strategy_.saved();
  if (!only_) {
    variables.check_all_used();
    variables.end_filling();  // now: what is made from here on is not in this checkpoint either
  }
  const Metadata all = with_texts(metadata);
  std::shared_future<Status> written;
  try {
    if (!variables.writes()) {
      variables.take_part(only_);
      written = ended_with(Status());
    } else {
      SavedVariables::Write chosen = variables.begin_save(only_);  // the others take part in this
      throw_failure_among(earlier);                                // before all of it is stored for nothing
      if (when == Store::kNow) {
        const Stored stored = store_all(std::move(chosen), SavePace::kFull, step, all);
        try {
          written = std::async(std::launch::async, [this, earlier, stored] {
            return status_of_writing([&] { publish(stored, earlier); });
          });
        } catch (...) {  // there is no thread left for it
          directory_.abandon(stored.temporary);
          throw;
        }
      } else {
        written = std::async(std::launch::async, [this, step, all, earlier, chosen = std::move(chosen)]() mutable {
          return status_of_writing([&] {
            // A statement of its own: nobody waits until it lets go of the variables.
            Stored stored = store_all(std::move(chosen), SavePace::kBeside, step, all);
            publish(std::move(stored), earlier);
          });
        });
      }
    }
  } catch (...) {
    written = ended_with(status_of(std::current_exception()));
  }
  saving_ = Saving{step, std::move(written)};
}

void Checkpoints::save_between_steps(int64_t step, const Metadata& metadata, const Endings& earlier) {
  const bool in_step = strategy_.saved()->in_step();
  if (in_step && earlier.empty()) {
    save(step, metadata);
    return;
  }
  absl::MutexLock lock(&one_mu_);
  begin_saving(step, metadata, in_step ? Store::kNow : Store::kMeanwhile, earlier);
}

bool Checkpoints::save_is_under_way() {
  absl::MutexLock lock(&one_mu_);
  return saving_ && saving_->written.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::shared_future<Status> Checkpoints::being_saved() {
  absl::MutexLock lock(&one_mu_);
  return saving_ ? saving_->written : std::shared_future<Status>();
}

void Checkpoints::wait() {
  wait_until_written();
  directory_.wait_until_removed();
}

void Checkpoints::wait_until_written() {
  absl::MutexLock lock(&one_mu_);
  wait_until_saved();
}

void Checkpoints::wait_until_saved() {
  if (!saving_) return;
  const Saving saving = *std::exchange(saving_, std::nullopt);
  agree(saving.step, saving.written.get());
}

void Checkpoints::log_failure(const Status& written) const {
  if (written.ok()) return;
  MUSTER_LOG(error) << "a checkpoint in " << directory_.path() << " was not saved: " << Error(written).what();
}

void Checkpoints::agree(int64_t step, const Status& written) {
  const Status agreed = strategy_.saved()->agree_on_save(step, written);
  if (!agreed.ok()) throw Error(agreed);
  absl::MutexLock lock(&mu_);
  newest_ = step;
}

Checkpoints::Metadata Checkpoints::metadata() const {
  const std::optional<int64_t> step = newest();
  return step ? directory_.index(*step).metadata : Metadata();
}

std::string Checkpoints::metadata(const std::string& name) const {
  const Metadata all = metadata();
  const auto found = all.find(name);
  return found == all.end() ? "" : found->second;
}

Checkpoints::Stored Checkpoints::store_all(SavedVariables::Write variables, SavePace pace, int64_t step,
                                           const Metadata& metadata) {
  {
    absl::MutexLock lock(&mu_);
    if (known_) known_->insert(step);  // though this save may fail and leave it there
  }
  Stored stored{
      .temporary = directory_.begin(step), .index = {.step = step, .metadata = metadata}, .mark = random_id()};
  try {
    stored.index.entries = store(variables, pace, stored.temporary, stored.mark);
  } catch (...) {
    directory_.abandon(stored.temporary);
    throw;
  }
  return stored;
}

std::string Checkpoints::publish(Stored stored, const Endings& earlier) {
  const int64_t step = stored.index.step;
  std::string path;
  try {
    for (const std::shared_future<Status>& each : earlier) expect_written(each);
    path = directory_.commit(stored.temporary, stored.index);
  } catch (...) {
    directory_.abandon(stored.temporary);
    throw;
  }
  {
    auto base =
        options_.incremental ? std::make_shared<const Base>(Base{stored.mark, std::move(stored.index)}) : nullptr;
    absl::MutexLock lock(&mu_);
    newest_ = step;
    base_ = std::move(base);
  }
  try {
    directory_.keep_and_remove_later(options_.keep, step,
                                     [&](const std::vector<int64_t>& steps) { look_for_others(step, steps); });
  } catch (const Error& error) {  // what was saved is saved; the next one tries again
    MUSTER_LOG(warning) << "older checkpoints than " << path << " stay: " << error.what();
  }
  return path;
}

// Who removes the older ones of a directory takes those of others for its own.
void Checkpoints::look_for_others(int64_t step, const std::vector<int64_t>& steps) {
  std::set<int64_t> present(steps.begin(), steps.end());
  std::optional<int64_t> of_another;
  {
    absl::MutexLock lock(&mu_);
    for (const int64_t there : present) {
      if (known_ && there != step && !known_->contains(there)) of_another = there;
    }
    known_ = std::move(present);
  }
  if (!of_another) return;
  MUSTER_LOG(warning) << directory_.path() << " has a checkpoint of step " << *of_another
                      << " that somebody else has saved there meanwhile: each of the two removes what the other one "
                         "would go on from; expected a directory for each job, and for each Checkpoints of one";
}

std::vector<ShardEntry> Checkpoints::store(const SavedVariables::Write& variables, SavePace pace,
                                           const std::string& temporary, uint64_t mark) {
  SaveOptions options{.pace = pace};
  if (!options_.incremental) return variables(temporary, options);
  std::shared_ptr<const Base> base;
  {
    absl::MutexLock lock(&mu_);
    base = base_;
  }
  // Before anything is stored: who cannot have the files of the base needs all rows.
  if (base && !link_base(directory_.path_of(base->index.step), base->index, temporary)) base = nullptr;
  options.since = {.owner = id_,
                   .base = base ? base->mark : 0,
                   .mark = mark,
                   .most_differences = options_.incremental->most_differences,
                   .least_bytes = options_.incremental->least_bytes};
  std::vector<ShardEntry> stored = variables(temporary, options);
  return base ? on_top_of(base->index, std::move(stored), temporary) : stored;
}

void Checkpoints::restore_from(const Checkpoint& checkpoint, const RestoreOptions& options) {
  const CheckpointIndex index = directory_.index(checkpoint.step);
  const auto source = [&](std::set<std::string> names, Only only) {
    return SavedVariables::Source{.checkpoint = checkpoint.path,
                                  .variables = std::move(names),
                                  .allow_missing = options.allow_missing,
                                  .allow_unused = options.allow_unused,
                                  .only = std::move(only),
                                  .restorer = this,
                                  .silent = options.only_to_look};
  };
  std::map<std::string, std::string> texts;
  std::set<std::string> in_checkpoint, wanted;
  for (const auto& [name, text] : index.metadata) {
    if (!name.starts_with(kTextOf)) continue;
    const std::string object = name.substr(kTextOf.size());
    texts[object] = text;
    in_checkpoint.insert(object);
  }
  for (const auto& [name, object] : options_.objects) {
    if (object.is_text()) wanted.insert(name);
  }
  const std::set<std::string> variables = variables_in(index);
  try {
    (void)unused_after_match(source(in_checkpoint, Only(std::in_place)), wanted);
    strategy_.saved()->restore(source(variables, only_));
  } catch (const Error& error) {
    const Status& status = error.status();
    const std::string hint =
        status.code() == StatusCode::kNotFound ? hint_at_kind(variables, options_.objects, directory_.path()) : "";
    if (hint.empty()) throw;
    throw Error(Status(status.code(), status.message() + hint, status.task(), status.detail()));
  }
  for (const std::string& name : wanted) {
    const auto text = texts.find(name);
    if (text == texts.end()) continue;
    try {
      options_.objects.at(name).restore(text->second);
    } catch (const Error& error) {
      throw Error(Status(error.code(), str_cat("checkpoint ", checkpoint.path, ": \"", name,
                                               "\" does not fit, and variables have been restored already: ",
                                               error.status().message())));
    }
  }
}

std::vector<Checkpoint> Checkpoints::candidates(const RestoreOptions& options) {
  std::vector<Checkpoint> found = directory_.present();
  std::reverse(found.begin(), found.end());
  if (!options.step) return found;
  const int64_t last = found.empty() ? 0 : found.front().step;
  std::erase_if(found, [&](const Checkpoint& checkpoint) { return checkpoint.step != *options.step; });
  if (found.empty()) throw not_found(directory_.path(), " has no checkpoint of step ", *options.step);
  if (last > *options.step && !options.only_to_look) {
    MUSTER_LOG(warning) << directory_.path() << " has later checkpoints than that of step " << *options.step
                        << ", up to step " << last << ": restore() without a step takes the last; remove them to go on "
                        << "from here";
  }
  return found;
}

std::optional<int64_t> Checkpoints::restore(const RestoreOptions& options) {
  absl::MutexLock one(&one_mu_);
  try {
    wait_until_saved();
  } catch (const Error& error) {  // there may be others to go on from
    log_failure(error.status());
  }
  // Before the others are told that all went well here.
  std::set<int64_t> present;
  for (const Checkpoint& each : directory_.present()) present.insert(each.step);
  const std::optional<int64_t> step = restore_here(options);
  if (step) present.insert(*step);
  strategy_.saved()->agree_on_step(step.value_or(-1));
  absl::MutexLock lock(&mu_);
  newest_ = step;
  base_ = nullptr;
  known_ = std::move(present);  // whoever has saved what is there: it goes on from here
  return step;
}

void Checkpoints::finish_restore() {
  strategy_.saved()->check_all_used();
  strategy_.saved()->end_filling();
}

std::optional<int64_t> Checkpoints::newest() const {
  absl::MutexLock lock(&mu_);
  return newest_;
}

std::optional<int64_t> Checkpoints::restore_here(const RestoreOptions& options) {
  std::vector<Checkpoint> left = candidates(options);
  if (left.empty()) {
    try {
      strategy_.saved()->check_held();
    } catch (const Error& error) {
      throw failed_precondition("there is no checkpoint in ", directory_.path(), ", and ", error.status().message(),
                                "; start the job anew, and save one before the first step");
    }
    if (strategy_.is_chief() && !options.may_be_none) {
      MUSTER_LOG(warning) << "there is no checkpoint in " << directory_.path()
                          << (std::filesystem::exists(directory_.path()) ? "" : ", which does not exist")
                          << ": nothing is restored, variables have the values that they had";
    }
    return std::nullopt;
  }
  std::string damage;
  int damaged = 0;
  std::vector<std::string> passed_over;
  const auto warn_of_damage = [&] {
    for (const std::string& each : passed_over) MUSTER_LOG(warning) << each;
  };
  while (!left.empty()) {
    const Checkpoint candidate = left.front();
    left.erase(left.begin());
    try {
      restore_from(candidate, options);
      warn_of_damage();
      return candidate.step;
    } catch (const Error& error) {
      if (!std::filesystem::exists(candidate.path)) {
        // Somebody else who saves here has removed it, having written a newer one.
        left = candidates(options);
        damage.clear();  // the damaged ones are among them again
        damaged = 0;
        passed_over.clear();
        continue;
      }
      // Only what is proven to be damaged is passed over. If there is no other, the error says it.
      if (error.code() != StatusCode::kDataLoss) {
        warn_of_damage();
        throw;
      }
      passed_over.push_back(str_cat(candidate.path, " is damaged and passed over: ", error.status().message()));
      str_append(damage, "; step ", candidate.step, ": ", error.status().message());
      ++damaged;
    }
  }
  if (options.step) throw data_loss("the checkpoint of step ", *options.step, " is damaged", damage);
  if (options.begin_anew) {
    warn_of_damage();
    if (strategy_.is_chief()) {
      MUSTER_LOG(warning) << "all checkpoints in " << directory_.path() << " are damaged: nothing is restored";
    }
    return std::nullopt;
  }
  throw data_loss(damaged == 1 ? "the only checkpoint" : "all checkpoints", " in ", directory_.path(),
                  damaged == 1 ? " is" : " are", " damaged; RestoreOptions::begin_anew begins without one", damage);
}

}  // namespace muster
