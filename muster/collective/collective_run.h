// One call of a collective, at one task of the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/collective/all_reduce_sizes.h"
#include "muster/collective/machines.h"
#include "muster/runtime/worker/collectives.h"

namespace muster {

// The memory of the other tasks of a group, all of which are processes of this machine.
class MemoryOfOthers {
 public:
  virtual ~MemoryOfOthers() = default;
  // Copies what a task has at that address. Throws Error with its name if it has nothing there.
  virtual void read(int from, uint64_t there, const at::Tensor& into) = 0;
  // Throws Error if one of them has failed, and may have let go of what was read of it.
  virtual void check_none_has_failed() = 0;
  // What others may be reading stays in memory until let_go(), or, if this call fails, until they have been told so.
  virtual void keep(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& made) = 0;
  virtual void let_go() = 0;
};

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
  // Null: sums are not to be made by reading it. The same at all of them.
  virtual MemoryOfOthers* memory() { return nullptr; }
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

// One question for each other task, by rank.
std::vector<size_t> ask_all(Mail& mail, int64_t what);
// A message that says no more than that it is there.
void tell_all(Mail& mail, int64_t what);

// Everybody says what it does, in the first message, and something else besides, of the same size and type at all.
// Returns what each has said, by rank. Throws as above.
std::vector<at::Tensor> agree_and_tell(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                       const at::Tensor& told, Mail& mail);
// The same without that.
void agree_on(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail);
// Of a call that goes on otherwise, from GPU to GPU.
void agree_on_gpus(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail);

}  // namespace muster
