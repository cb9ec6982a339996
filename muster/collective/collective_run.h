// One call of a collective, at one task of the group.
#pragma once

#include <string>
#include <vector>

#include "muster/collective/all_reduce_sizes.h"
#include "muster/collective/machines.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// How the tasks of a group reach each other during one call.
class Mail {
 public:
  virtual ~Mail() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Copies a tensor to a task, if there is a way of their own. False: it is to be left for it.
  virtual bool send(int to, int64_t what, const at::Tensor& tensor) = 0;
  // Leaves a tensor for a task. Nobody writes to its memory until the task has it.
  virtual void leave(int to, int64_t what, at::Tensor tensor) = 0;
  // Asks a task for what it has for this one, now or later. Returns the number of the question. `into`: memory that
  // nobody uses until then, where the answer is if that saves a copy.
  virtual size_t ask(int from, int64_t what, at::Tensor into = {}) = 0;
  // The question for the first message of each task, which may have been asked before the call began.
  virtual size_t first_question(int from) = 0;
  // The answer, to be read and not to be written. Throws Error with the name of the task if there will be none.
  virtual at::Tensor wait(size_t question) = 0;
  virtual std::string name_of(int rank) const = 0;
};

// Of every call: the first message that a task leaves for each other one.
inline constexpr int64_t kFirstMessage = 0;

// Throws Error{kInvalidArgument} for tensors that there is no such call of. Nobody else need know.
void check_values(const CollectiveCall& call, const std::vector<at::Tensor>& values, int size);

// What all have together. Throws Error{kInvalidArgument} if tasks are not at the same call. `sizes` and `machines` are
// the same at all of them.
// REQUIRES: check_values().
std::vector<at::Tensor> run_collective(const CollectiveCall& call, std::vector<at::Tensor> values,
                                       const AllReduceSizes& sizes, const Machines& machines, Mail& mail);

// Everybody says what it does, in the first message. Throws as above.
void agree_on(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail);
// Of a call that goes on otherwise, from GPU to GPU.
void agree_on_gpus(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail);

}  // namespace muster
