// What checkpoints need of whoever holds the variables of a strategy.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/variables/variable_files.h"

namespace muster {

// Thread-safe.
class SavedVariables {
 public:
  // The variables that are meant, by their names, and what they are called in the checkpoint; nothing: all, by their
  // own names.
  using Only = std::optional<std::map<std::string, std::string>>;

  struct Source {
    std::string checkpoint{};
    std::set<std::string> variables{};  // that it has
    bool allow_missing = false, allow_unused = false;
    Only only{};  // with it, nothing is kept for variables that are made later
    const void* restorer = nullptr;
    bool silent = false;  // nobody wants to read in the log what is restored, or another process says it
  };

  virtual ~SavedVariables() = default;
  // Of several processes with the same variables those that do not write call it where the one that writes calls
  // begin_save(): a value may be put together of what all of them have.
  virtual void take_part([[maybe_unused]] const Only& only) const {}
  // Writes variables into files of a directory, by any thread.
  using Write = std::function<std::vector<ShardEntry>(const std::string& directory, const SaveOptions& options)>;
  // Chooses them now: what is made before they are written is not among them, and what nobody has any more is.
  virtual Write begin_save(const Only& only) const = 0;
  // Whether steps change all variables together: what is saved while they go on then never was at one moment.
  virtual bool in_step() const { return true; }
  // Throws now what save() into a directory below this one would throw because somebody may not use it.
  virtual void check_directory([[maybe_unused]] const std::string& directory) const {}
  // Gives the variables the values that they have in a checkpoint, all of them or none, and those that are made from
  // now on, until end_filling(), too. Throws Error{kNotFound} by the rule of delayed_restore.h.
  virtual void restore(Source source) = 0;
  // Throws Error{kFailedPrecondition} that names who has lost the values of some, so that nobody has them any more.
  virtual void check_held() const {}
  // Throws Error{kNotFound} that names what the checkpoint that was restored has too much.
  virtual void check_all_used() const = 0;
  // Variables that are made from now on begin with their own values again.
  virtual void end_filling() = 0;
  // The one who has restored is gone. Where variables belong to nobody but the process, that ends it too.
  virtual void restorer_is_gone([[maybe_unused]] const void* restorer) {}

  // Of several processes with the same variables one writes. All call the others, when it has written or could not, and
  // when they have restored a step (-1: none).
  virtual bool writes() const { return true; }
  virtual Status agree_on_save([[maybe_unused]] int64_t step, const Status& written) { return written; }
  virtual void agree_on_step([[maybe_unused]] int64_t step) {}
};

// Those of this process that live here, whoever has made them. Of a mirrored one the first copy is saved, and all are
// restored; of one that is put together when it is read, that.
std::shared_ptr<SavedVariables> variables_of_this_process();

}  // namespace muster
