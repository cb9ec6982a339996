// The traces of a function of a dataset: which elements each of them is for, and which of them are sent.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/data/element_function.h"
#include "muster/graph/program.h"
#include "muster/runtime/worker/element_source.h"

namespace muster {

class DatasetNode;

// A traced function and what it needs besides its program.
struct ElementProgram {
  Program program{};
  std::vector<bool> compact{};         // as TracedProgram::compact
  std::shared_ptr<const void> kept{};  // the variables that it uses
  // Per argument: the least sizes of a tensor that it takes, while those of the program's argument are the most. None:
  // it takes those sizes alone.
  std::vector<std::vector<int64_t>> least{};

  bool takes(const Element& element) const;
  std::string taken() const;  // "float32[1 to 9, 3], int64[]"
};
using ElementPrograms = std::vector<std::shared_ptr<const ElementProgram>>;

// Traces that are the same program, whatever the sizes of its arguments, become one that takes all sizes between the
// least and the most of theirs, unless there is another program for some in between.
ElementPrograms joined(const ElementPrograms& traces);

// Equal for traces that do the same with elements of different sizes, whatever they are called and draw.
std::string without_sizes(const ElementProgram& traced);

// What a function of a dataset looks like for elements of the shapes that were met so far. Shared by all datasets that
// use it. Thread-safe.
class ElementTraces {
 public:
  // Traces are made one for each shape, up to so many.
  static constexpr size_t kMostShapes = 64;

  // Made here. `op`: "map" or "filter".
  ElementTraces(const char* op, ElementFunction function);
  // Or got from elsewhere: none if there was no element to trace it on.
  ElementTraces(const char* op, ElementPrograms got);
  ElementTraces(const ElementTraces&) = delete;
  ElementTraces& operator=(const ElementTraces&) = delete;

  // `map "augment.cc:12"`
  std::string name() const ABSL_LOCKS_EXCLUDED(mu_);

  // For the first element of `input`; null if there is none.
  std::shared_ptr<const ElementProgram> first(const DatasetNode& input) ABSL_LOCKS_EXCLUDED(mu_);
  // For an element. Throws Error{kInvalidArgument} if there is none, and none can be made.
  std::shared_ptr<const ElementProgram> for_element(const Element& element) ABSL_LOCKS_EXCLUDED(mu_);
  // All that whoever opens it elsewhere needs for elements like the first ones of `input`, and for smaller batches.
  ElementPrograms to_send(const DatasetNode& input) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::shared_ptr<const ElementProgram> known(const Element& element) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const ElementProgram> trace(const Element& element) const;
  // Of an element that is made up, with sizes of 1, or of four times the largest, where theirs differ. Null if it would
  // be too large.
  std::shared_ptr<const ElementProgram> trace_resized(const ElementPrograms& alike, bool larger) const;
  std::shared_ptr<const ElementProgram> remember(const Element& element, std::shared_ptr<const ElementProgram> traced)
      ABSL_LOCKS_EXCLUDED(mu_);
  [[noreturn]] void refuse(const Element& element) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const char* const op_;
  const ElementFunction function_;

  mutable absl::Mutex mu_;
  ElementPrograms known_ ABSL_GUARDED_BY(mu_);
  std::optional<ElementPrograms> joined_ ABSL_GUARDED_BY(mu_);   // once there are too many
  std::optional<ElementPrograms> to_send_ ABSL_GUARDED_BY(mu_);  // once somebody asked
};

// Whether the elements of a dataset have different shapes, as far as its description says.
enum class ElementShapes {
  kAlike,
  kLastBatchSmaller,
  kAny,
};
ElementShapes shapes_of(const DatasetNode& node);

}  // namespace muster
