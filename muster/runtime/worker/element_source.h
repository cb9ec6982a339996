// A sequence of examples that a program takes one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/runtime/executor/input_timing.h"
#include "muster/runtime/executor/parts.h"

namespace muster {

class Worker;

using Element = std::vector<at::Tensor>;

// Thread-safe: `next` may be called from several threads, and each element is handed out once.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  // The next element; nothing after the last one. Throws Error.
  virtual std::optional<Element> next() = 0;
  // Goes back to the beginning, as repeat() does: what was cached stays, what is shuffled comes in another order.
  // False: it cannot, and has to be opened anew.
  virtual bool begin_again() { return false; }
  // Nobody wants any more: who is in next(), however long that would look for one, gets Error{kCancelled}.
  virtual void close() {}
  // So many of its elements were used by runs that have ended.
  virtual void used(int64_t /*elements*/) {}
  // A run takes an element that another one has given back.
  virtual void taken_again() {}
  // Of a sequence that others read, too: answers what it has asked for, and calls `wanted` once, when it asks for more
  // or there is nobody to ask. `cancellation` may be null, and lives until then.
  virtual void hand_out(const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted);
  // Where another one of the same description goes on that was opened there, after so many elements of this. Empty: it
  // has no place of its own that could be said.
  virtual std::string position_after(int64_t /*taken*/) const { return {}; }
  // What it spends its time on; nothing if it does not measure that.
  virtual InputTiming timing() const { return {}; }
};

// How a run takes an element.
struct Taking {
  bool may_come_back = false;  // nothing has happened yet, and the run can as well be tried elsewhere
  int64_t has = 0;             // elements of the sequence
  int64_t needs = 1;           // so many of them at least, in all: it cannot go on with fewer
};

// On whose behalf this thread takes elements: while one of these lives, a sequence that takes long to find one ends
// with Error{kCancelled} when the run is cancelled.
class [[nodiscard]] TakingFor {
 public:
  // Null: nobody cancels it.
  explicit TakingFor(const Cancellation* run, const Taking& how = {});
  ~TakingFor();
  TakingFor(const TakingFor&) = delete;
  TakingFor& operator=(const TakingFor&) = delete;

  static void throw_if_cancelled();
  static Taking how();                   // of the innermost one on this thread
  static const Cancellation* current();  // likewise; null: none, or nobody cancels it

 private:
  const Cancellation* const outer_;
  const Taking outer_how_;
};

// Opens a sequence from its description (data/dataset.h knows how): `worker` runs the functions in it.
using OpenSource = std::function<std::unique_ptr<ElementSource>(const std::string& description, Worker& worker)>;

}  // namespace muster
