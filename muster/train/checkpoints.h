// Saves and restores the variables of a strategy, whichever it is.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/distribute/strategy.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/train/checkpoint_object.h"
#include "muster/train/incremental_options.h"

namespace muster {

struct CheckpointsOptions {
  std::string directory;  // which all parameter servers see under this name, and may use (LocalWorkerOptions::storage)
  int keep = 3;           // the newest ones; older ones are removed, after the save that makes them so has returned
  std::optional<IncrementalOptions> incremental{};
  // Only these, under these names; nothing else is saved or changed:
  //   {.directory = "…", .objects = {{"net", net}, {"sgd", sgd}, {"step", &step}, {"rows", {&iterator, dataset}}}}
  // Without: all variables of the strategy.
  std::map<std::string, CheckpointObject> objects{};
};

struct RestoreOptions {
  std::optional<int64_t> step{};  // this one and no other; else the newest that is sound
  // A checkpoint and the variables have the same names, or that is an error which names the others, since a job that
  // goes on without them computes something else. Variables that the checkpoint has not may keep their values, and
  // those that are made later begin with their initial ones:
  bool allow_missing = false;
  // And the checkpoint may have values that nobody asks for. Later ones lack them.
  bool allow_unused = false;
  // Where there are checkpoints and all of them are damaged, begin as if there were none. Else that is an error.
  bool begin_anew = false;
  // Nobody goes on from there, as an evaluator beside a training: the log tells neither what is taken nor that there
  // are later ones, which may come at any time.
  bool only_to_look = false;
  // At the start of a job that may be its first: the log does not warn that there is no checkpoint.
  bool may_be_none = false;
};

// The checkpoints of a training job: all variables that were made in the strategy's scope and still are, with what
// optimizers keep beside them. Every parameter server writes its own, in parallel, and nothing is visible until all of
// it is on the disk. Of a strategy for this process, or none, they are all variables that live here. They load into any
// number of parts, servers and copies, under any strategy. With CheckpointsOptions::objects they are those that the
// user names, wherever else variables live. Thread-safe. Limit: while closures or steps run, each
// variable of up to 8 MiB is saved as it is at one moment, and of a larger one every MiB of whole rows, but not all at
// the same one; join() and save() first for a state that belongs together. Memory is needed for a few such pieces.
class Checkpoints {
 public:
  Checkpoints(const Strategy& strategy, CheckpointsOptions options);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Throws Error{kPermissionDenied} now if a parameter server may not use the directory, which save() would say later.
  // Waits for those that are being restarted.
  void check_directory() const;

  // Returns the path. Throws Error{kAlreadyExists} if the step has one that is sound; if a server fails, nothing is
  // left behind. Takes as long as it takes. Warns if somebody else has saved in the directory since the save before.
  std::string save(int64_t step, const std::map<std::string, std::string>& metadata = {}) ABSL_LOCKS_EXCLUDED(one_mu_);

  // The same while training goes on, which it takes little of: returns at once. What is there now is saved, what of it
  // goes meanwhile, too. One at a time: waits for the one before, and throws what that one has thrown if nobody has got
  // it. Of several processes that train in step the others hear of it in the next save, wait or restore of all.
  void save_async(int64_t step, const std::map<std::string, std::string>& metadata = {}) ABSL_LOCKS_EXCLUDED(one_mu_);
  // save_async() on parameter servers, where there is no moment between two steps of all workers. Under any other
  // strategy, whose steps change all variables together, save(): what is saved belongs together. For who saves between
  // two steps and will go on from there.
  // `earlier`, of as many saves at all processes: what the metadata says is on the disk. The checkpoint appears when
  // all of them have ended, though this returns before, as save_async() does; if one has failed it never appears, and
  // the error is that one's.
  using Endings = std::vector<std::shared_future<Status>>;
  void save_between_steps(int64_t step, const std::map<std::string, std::string>& metadata = {},
                          const Endings& earlier = {}) ABSL_LOCKS_EXCLUDED(one_mu_);
  // Whether the next save would wait for one that has begun and goes on, in the process that writes it.
  bool save_is_under_way() ABSL_LOCKS_EXCLUDED(one_mu_);
  // How that one ends, or has ended if nobody has waited for it yet; not valid: there is none, and what was saved
  // before is on the disk, or its error was thrown. Processes that do not write do not know: they have one that has
  // ended well.
  std::shared_future<Status> being_saved() ABSL_LOCKS_EXCLUDED(one_mu_);
  // Until the last save_async() has ended and older ones are removed; throws what the save throws. A restore waits for
  // the save, too, as a save of another thread does for a restore: else it would have values of before and after. Who
  // destroys this waits for all, and the log has the error.
  void wait() ABSL_LOCKS_EXCLUDED(one_mu_);
  // The same, though older ones may still be being removed: for who is about to change variables.
  void wait_until_written() ABSL_LOCKS_EXCLUDED(one_mu_);

  // Gives the variables the values of the newest sound checkpoint, all of them or none, and returns its step; nothing
  // if there is no checkpoint, of which there is a warning: the directory may be another one. What is taken, and what
  // is passed over and why, is logged. Waits for parameter servers that are being restarted, as long as the strategy's
  // connect_timeout. Variables that are made later, until the next save() or finish_restore(), begin with the values
  // that this checkpoint has for their names; without parameter servers only while this object is there.
  // Throws Error{kDataLoss} if all are damaged, Error{kNotFound} for variables that the checkpoint has not,
  // Error{kUnavailable} for a disk or a server that does not answer: a checkpoint that cannot be read now is never
  // passed over. Limit: a disk or server that fails after all have looked and while they change their variables leaves
  // some changed and some not, and the error says so: restore again.
  std::optional<int64_t> restore(const RestoreOptions& options = {}) ABSL_LOCKS_EXCLUDED(one_mu_);

  // All variables have been made. Throws Error{kNotFound} that names what the checkpoint has and none of them has asked
  // for, unless that is allowed. The next save() or save_async() does the same, before it saves.
  void finish_restore();

  // What save() was given beside the variables, in the checkpoint that was last saved or restored; empty if there was
  // none, or none of that name. It is read from the disk each time.
  std::string metadata(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  std::map<std::string, std::string> metadata() const ABSL_LOCKS_EXCLUDED(mu_);  // all of it, and the texts of objects

  // The step that was last saved or restored by this; nothing before.
  std::optional<int64_t> newest() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Metadata = std::map<std::string, std::string>;
  using Only = SavedVariables::Only;
  struct Base {
    uint64_t mark;
    CheckpointIndex index;
  };

  // All of a checkpoint but its name and its index is on the disk.
  struct Stored {
    std::string temporary;
    CheckpointIndex index;
    uint64_t mark;
  };

  // What goes on when a save has returned. Of several processes with the same variables those that do not write have
  // only begun to wait for the one that does.
  struct Saving {
    int64_t step;
    std::shared_future<Status> written;
  };
  enum class Store { kNow, kMeanwhile };

  void begin_saving(int64_t step, const Metadata& metadata, Store when, const Endings& earlier)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(one_mu_);
  void wait_until_saved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(one_mu_);  // throws what the save throws
  void log_failure(const Status& written) const;                   // where it is nobody's
  // What has become of a save, for all processes that have called it. Throws it, too.
  void agree(int64_t step, const Status& written);
  // `step` was just saved; it is among `steps`, which were there then.
  void look_for_others(int64_t step, const std::vector<int64_t>& steps) ABSL_LOCKS_EXCLUDED(mu_);
  Stored store_all(SavedVariables::Write variables, SavePace pace, int64_t step, const Metadata& metadata);
  std::string publish(Stored stored, const Endings& earlier);  // gives the path
  std::vector<ShardEntry> store(const SavedVariables::Write& variables, SavePace pace, const std::string& temporary,
                                uint64_t mark);
  std::optional<int64_t> restore_here(const RestoreOptions& options);
  // Those that may be restored, the newest first.
  std::vector<Checkpoint> candidates(const RestoreOptions& options);
  void restore_from(const Checkpoint& checkpoint, const RestoreOptions& options);
  // What save() is given, and what the objects say now.
  Metadata with_texts(const Metadata& metadata) const;

  const Strategy strategy_;
  const CheckpointsOptions options_;
  const uint64_t id_;
  const Only only_;
  CheckpointDirectory directory_;
  mutable absl::Mutex mu_;
  std::optional<int64_t> newest_ ABSL_GUARDED_BY(mu_);
  // The steps that were there after the last save or restore, and that of a save since; nothing: it is not known yet.
  std::optional<std::set<int64_t>> known_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Base> base_ ABSL_GUARDED_BY(mu_);  // of the next incremental one; null: none
  absl::Mutex one_mu_;                                     // held by whoever saves or restores: one at a time
  std::optional<Saving> saving_ ABSL_GUARDED_BY(one_mu_);
};

}  // namespace muster
