#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/inlined_vector.h>
#include <absl/synchronization/mutex.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/elements.h"
#include "muster/runtime/worker/run_options.h"
#include "muster/runtime/worker/shared_source.h"

namespace muster {

struct Plan;

// What a run fails with whose sequence of examples has ended. Other things are out of range, too, such as a row of a
// table: which one it is, the error's detail says.
Error sequence_ended();
bool is_sequence_end(const Status& status);

// The sequence of examples with this number. Throws Error{kNotFound}.
using FindSource = std::function<std::shared_ptr<SharedSource>(uint64_t number)>;

// The elements that a run takes. Those that it takes before it begins, and then does not begin after all, it gives
// back.
class TakenElements {
 public:
  TakenElements() = default;
  ~TakenElements();
  TakenElements(const TakenElements&) = delete;
  TakenElements& operator=(const TakenElements&) = delete;

  // Throws Error{kOutOfRange} at the end of a sequence, and what other_elements() makes for elements that the plan is
  // not for. REQUIRES: `arguments` are those of the program.
  void take(const Plan& plan, const std::vector<at::Tensor>& arguments, const FindSource& find,
            const RunOptions& options);
  // The run begins, and they are its own. `may_fail`: by a loss of others, after which it is tried again.
  std::vector<Element> use(bool may_fail);
  // It has come to nothing so, and what it began with comes next again.
  void give_back();
  // The next element of a sequence, for a run that is under way. Throws Error{kOutOfRange} after the last one, and
  // Error{kInvalidArgument} for one that does not look as it should. Thread-safe.
  Element next(const FindSource& find, const at::Tensor& number, const ElementSpec& expected, const RunOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Of one sequence.
  struct Share {
    std::shared_ptr<SharedSource> source;
    int64_t first = 0;  // elements that it begins with
    int64_t has = 0;
  };
  Share& share_of(const std::shared_ptr<SharedSource>& source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<std::shared_ptr<SharedSource>> sources_;  // of the first elements, in their order
  std::vector<Element> elements_;                       // the first ones, until the run begins
  std::vector<Element> kept_;                           // the same afterwards, if it may fail
  bool began_ = false;
  absl::Mutex mu_;
  absl::InlinedVector<Share, 1> shares_ ABSL_GUARDED_BY(mu_);  // few: a run takes many elements of the same sequence
};

}  // namespace muster
