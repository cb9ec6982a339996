#include "muster/distribute/servers/delayed_restore.h"

#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/graph/describe.h"

namespace muster {
namespace {

std::string few_of(const std::set<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(str_cat("\"", name, "\""));
  return first_few(quoted);
}

Error missing_from(const std::string& checkpoint, const std::set<std::string>& missing,
                   const std::set<std::string>& unused) {
  return not_found("checkpoint ", checkpoint, " has no values for ", few_of(missing),
                   unused.empty() ? "" : str_cat(", but for ", few_of(unused), ", which nobody has asked for"),
                   "; Checkpoints::restore({.allow_missing = true}) lets variables begin anew");
}

Error unused_of(const std::string& checkpoint, const std::set<std::string>& unused) {
  return not_found(
      "checkpoint ", checkpoint, " has values for ", few_of(unused),
      ", which nobody has asked for; Checkpoints::restore({.allow_unused = true}) leaves them out, and then later "
      "checkpoints lack them");
}

}  // namespace

std::set<std::string> unused_after_match(const SavedVariables::Source& source, const std::set<std::string>& names) {
  std::set<std::string> missing, unused = source.variables;
  for (const std::string& name : names) {
    unused.erase(name);
    if (!source.variables.contains(name)) missing.insert(name);
  }
  if (!missing.empty()) {
    if (!source.allow_missing) throw missing_from(source.checkpoint, missing, unused);
    if (!source.silent) {
      MUSTER_LOG(warning) << "checkpoint " << source.checkpoint << " has no values for " << few_of(missing)
                          << ", which stay as they are";
    }
  }
  if (unused.empty()) return unused;
  if (source.only && !source.allow_unused) throw unused_of(source.checkpoint, unused);
  if (source.silent) return unused;
  MUSTER_LOG(info) << "checkpoint " << source.checkpoint << " also has values for " << few_of(unused)
                   << (source.only ? ", which are left out" : ", which are not made yet");
  return unused;
}

bool ChosenVariables::take(StoredVariable& variable) {
  if (!only_) return true;
  const auto chosen = only_->find(variable.whole);
  if (chosen == only_->end()) return false;
  taken_.insert(variable.whole);
  variable.whole = chosen->second;
  return true;
}

void ChosenVariables::check_all_taken() const {
  if (!only_) return;
  std::set<std::string> others;
  for (const auto& [name, in_checkpoint] : *only_) {
    if (!taken_.contains(name)) others.insert(name);
  }
  if (others.empty()) return;
  throw invalid_argument("Checkpoints: the objects have variables that are not of this strategy: ", few_of(others));
}

void DelayedRestore::begin(SavedVariables::Source source, std::set<std::string> unused) {
  absl::MutexLock lock(&mu_);
  source_ = std::move(source);
  unused_ = std::move(unused);
}

std::optional<std::string> DelayedRestore::checkpoint_for(const std::string& variable) const {
  absl::MutexLock lock(&mu_);
  if (!source_) return std::nullopt;
  if (source_->variables.contains(variable)) return source_->checkpoint;
  if (!source_->allow_missing) throw missing_from(source_->checkpoint, {variable}, unused_);
  MUSTER_LOG(warning) << "checkpoint " << source_->checkpoint << " has no value for \"" << variable
                      << "\", which begins anew";
  return std::nullopt;
}

void DelayedRestore::filled(const std::string& variable) {
  absl::MutexLock lock(&mu_);
  unused_.erase(variable);
}

void DelayedRestore::check_all_used() const {
  absl::MutexLock lock(&mu_);
  if (source_ && !unused_.empty() && !source_->allow_unused) throw unused_of(source_->checkpoint, unused_);
}

bool DelayedRestore::is_from(const void* restorer) const {
  absl::MutexLock lock(&mu_);
  return source_ && source_->restorer == restorer;
}

void DelayedRestore::end() {
  std::optional<SavedVariables::Source> source;
  std::set<std::string> unused;
  {
    absl::MutexLock lock(&mu_);
    std::swap(source, source_);
    std::swap(unused, unused_);
  }
  if (unused.empty()) return;
  MUSTER_LOG(warning) << "checkpoint " << source->checkpoint << " has values for " << few_of(unused)
                      << ", for which no variable was made: later checkpoints lack them";
}

}  // namespace muster
