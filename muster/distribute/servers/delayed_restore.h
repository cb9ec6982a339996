// What a checkpoint has for variables that are made after it was restored.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <optional>
#include <set>
#include <string>

#include "muster/base/status.h"
#include "muster/distribute/saved_variables.h"

namespace muster {

// The one rule for names: a checkpoint and the variables have the same ones. What the checkpoint lacks is an
// Error{kNotFound} as soon as it is known, at the restore or when the variable is made. What it has too much is one as
// soon as nobody can ask for it any more: at the restore if it is for chosen variables (`only`), else at the next save
// or when it is asked for. Each is allowed by an option of its own, and then it is a line in the log.

// Throws Error{kNotFound} unless `names`, which are all that are there, fit what the checkpoint has. Gives what it has
// for others.
std::set<std::string> unused_after_match(const SavedVariables::Source& source, const std::set<std::string>& names);

// Of the variables that were chosen, as far as they are there. What is chosen gets the name that it has in checkpoints.
class ChosenVariables {
 public:
  explicit ChosenVariables(const SavedVariables::Only& only) : only_(only) {}
  // Whether it is one of them.
  bool take(StoredVariable& variable);
  // Throws Error{kInvalidArgument} for those that were chosen and are not there.
  void check_all_taken() const;

 private:
  const SavedVariables::Only& only_;
  std::set<std::string> taken_;
};

// Thread-safe.
class DelayedRestore {
 public:
  void begin(SavedVariables::Source source, std::set<std::string> unused) ABSL_LOCKS_EXCLUDED(mu_);
  // The checkpoint that has a value for a variable that is made now; nothing if there is none. Throws Error{kNotFound}.
  std::optional<std::string> checkpoint_for(const std::string& variable) const ABSL_LOCKS_EXCLUDED(mu_);
  void filled(const std::string& variable) ABSL_LOCKS_EXCLUDED(mu_);
  // Throws Error{kNotFound} that names what nobody has asked for.
  void check_all_used() const ABSL_LOCKS_EXCLUDED(mu_);
  bool is_from(const void* restorer) const ABSL_LOCKS_EXCLUDED(mu_);
  void end() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::optional<SavedVariables::Source> source_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> unused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
