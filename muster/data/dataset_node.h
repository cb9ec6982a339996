// What a Dataset is made of.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include "muster/data/column.h"
#include "muster/data/dataset_ops.h"

namespace muster {

// What the columns of an element are called. None: they have no names.
struct ColumnNames {
  std::vector<std::string> names{};
  size_t labels = 0;  // so many of them, the last ones, are what the others are to predict
};

// One step of a description and the steps before it. Immutable but for what it remembers; thread-safe.
class DatasetNode {
 public:
  using Inputs = std::vector<std::shared_ptr<const DatasetNode>>;

  // How large a description may be: whoever walks it calls itself, and a dataset that is zipped with itself doubles.
  static constexpr int kDeepest = 64;
  static constexpr int64_t kMostNodes = 10'000;

  // Throws Error{kInvalidArgument} over a limit.
  DatasetNode(DatasetOp op, Inputs inputs);

  const DatasetOp& op() const { return op_; }
  const Inputs& inputs() const { return inputs_; }
  const DatasetNode& input() const { return *inputs_.front(); }

  // The first elements, as the local worker makes them, up to `most`; fewer if they are large, or if one that is not
  // the first cannot be made. Shuffles and filters are left out: what they give looks like what they take, and a filter
  // may wait for ever for one that it lets through. `rows`: batches that may be smaller at the end have at most so
  // many.
  std::vector<Columns> examples(size_t most, std::optional<int64_t> rows = {}) const;
  std::vector<TensorSpec> element_spec() const ABSL_LOCKS_EXCLUDED(mu_);
  const ColumnNames& names() const { return names_; }

 private:
  const DatasetOp op_;
  const Inputs inputs_;
  ColumnNames names_;
  int depth_ = 1;
  int64_t nodes_ = 1;
  bool on_device_ = false;  // its elements need not be in this process's memory

  mutable absl::Mutex mu_;
  mutable std::optional<std::vector<TensorSpec>> spec_ ABSL_GUARDED_BY(mu_);
};

// Whether this holds for one of its steps.
template <class Holds>
bool any_step(const DatasetNode& node, const Holds& holds) {
  if (holds(node)) return true;
  for (const auto& input : node.inputs()) {
    if (any_step(*input, holds)) return true;
  }
  return false;
}

// A dataset whose last step this is.
Dataset dataset_of(DatasetOp op, DatasetNode::Inputs inputs = {});
DatasetNode::Inputs nodes_of(const std::vector<Dataset>& datasets);
// The same with columns in the order of the first one. Throws Error{kInvalidArgument} in the name of `step` for other
// names.
DatasetNode::Inputs nodes_with_same_columns(const char* step, const std::vector<Dataset>& datasets);
// The same for datasets that have the same elements, as far as their descriptions say. Those of C++ functions do not
// say.
std::string fingerprint(const DatasetNode& node);
// Whether it gives the elements that it takes, each as it was.
bool passes_on(const DatasetOp& op);
// Whether records that cannot be read are left out.
bool ignores_errors(const DatasetNode& node);
// Whether C++ code makes elements: it may make others the next time, and may wait for what becomes of those before.
bool is_generator(const DatasetNode& step);
bool has_generator(const DatasetNode& node);
// Whether several read it together (ShardPolicy::kDynamic).
bool is_handed_out(const DatasetNode& node);
// "float32[784], int64[]"
std::string describe(const std::vector<TensorSpec>& specs);
std::string describe(const Columns& columns);
std::vector<TensorSpec> specs_of(const Element& element);
// As programs take them. Throws Error{kInvalidArgument} in the name of `who` if there are strings left.
Element tensors_of(Columns columns, const std::string& who, const std::vector<std::string>& names = {});

}  // namespace muster
