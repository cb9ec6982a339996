// What checkpoints need of whoever holds the variables of a strategy.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/variable_files.h"

namespace muster {

// Thread-safe.
class SavedVariables {
 public:
  struct Source {
    std::string checkpoint{};
    std::set<std::string> variables{};  // that it has
    bool allow_missing = false;
  };

  virtual ~SavedVariables() = default;
  // Writes all variables into files of this directory.
  virtual std::vector<ShardEntry> save(const std::string& directory, SavePace pace) const = 0;
  // Whether that makes sense while steps go on. Where steps are in step it does not: the variables would not belong
  // together.
  virtual bool saves_beside_steps() const { return false; }
  // Gives all variables the values that they have in a checkpoint, all of them or none. Throws Error{kNotFound} that
  // names the variables which the checkpoint has not, unless `allow_missing`.
  virtual void restore(Source source) = 0;
  // Throws Error{kFailedPrecondition} that names who has lost the values of some, so that nobody has them any more.
  virtual void check_held() const {}
  // Variables that are made from now on begin with their own values again.
  virtual void end_filling() {}

  // Of several processes with the same variables one writes. All call the others, when it has written or could not, and
  // when they have restored a step (-1: none).
  virtual bool writes() const { return true; }
  virtual Status agree_on_save([[maybe_unused]] int64_t step, const Status& written) { return written; }
  virtual void agree_on_step([[maybe_unused]] int64_t step) {}
};

// Those of this process that live here, whoever has made them. Of a mirrored one the first copy is saved, and all are
// restored. Limit: variables that are made after restore() begin with their initial values; it warns of that.
std::shared_ptr<SavedVariables> variables_of_this_process();

// Some of them, in quotes.
std::string listed(const std::set<std::string>& names);
Error missing_from(const std::string& checkpoint, const std::set<std::string>& missing,
                   const std::set<std::string>& unused);

}  // namespace muster
