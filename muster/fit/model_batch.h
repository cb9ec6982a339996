// An element of a sequence as what it means to a model.
#pragma once

#include <string>
#include <vector>

#include "muster/fit/criteria/criteria.h"
#include "muster/fit/forward.h"
#include "muster/trace/iterator.h"

namespace muster {

struct ModelBatch {
  // `labelled`: it has a target; else it may have one, which is found if it has names, or more tensors than the model
  // takes. Of tensors without names the first ones are inputs. `inputs_alone`: where a column could be an input or the
  // target, it is an input. Throws Error{kInvalidArgument} if they cannot be.
  ModelBatch(const Iterator& it, const std::vector<at::Tensor>& tensors, bool labelled, const InputsTaken& taken,
             bool inputs_alone = false);

  // A target for each criterion, by the names of the outputs or in their order, and weights and masks: those of the
  // output, or else those of all. Throws Error{kInvalidArgument} for others.
  std::vector<Expected> expected(const Criteria& criteria) const;

  // For errors: "inputs float32[16, 3], target float32[16, 1]", and what to do if they are no batch.
  std::string described() const;
  // For errors of the target: that nobody has named it, and who would; empty if somebody has, or if there is no name.
  std::string why_this_target() const;

  Features inputs{{}, {}};
  // Without names, weights may follow the targets: only the criteria tell.
  Features targets{{}, {}};
  Features weights{{}, {}};  // and masks, with the names of their columns

 private:
  bool target_is_last_ = false;  // of the columns, and therefore the target
};

}  // namespace muster
