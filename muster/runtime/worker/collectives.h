// What the tasks of a group do together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/base/status.h"

namespace muster {

enum class CollectiveKind : int64_t {
  kAllReduce,
  kAllGather,
  kBroadcast,
  kReduceScatter,
  kAllToAll,
  kReduce,
  kBarrier
};
enum class Reduction : int64_t { kSum, kMin, kMax };

// One call, as every task of the group makes it.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kSum;  // of kAllReduce, kReduceScatter and kReduce
  int64_t root = 0;                       // of kBroadcast: whose values all get; of kReduce: who gets the sum
  std::string purpose{};                  // in words: calls for different ones are different calls

  // "all_reduce(sum) for gradients".
  std::string to_string() const;
  // Of an instruction kCollective. Throws Error{kInvalidArgument} for numbers that name nothing.
  static CollectiveCall from_numbers(int64_t kind, int64_t reduction, int64_t root, std::string purpose);
};

using CollectiveDone = std::function<void(const Status&, std::vector<at::Tensor>)>;

// A group of tasks, seen from one of them. All of them make the same calls in the same order, and who does not is told
// so. Thread-safe.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // For messages: "rank 1 (/job:worker/replica:0/task:1 at host:2222, incarnation 77)". What is not known is left out.
  virtual std::string described(int rank) const = 0;

  // The tensors of all tasks as one: summed, after each other along their first dimension, or those of the root. They
  // are the same bits everywhere, and share no memory with `values`. kReduceScatter gives each rank its share of the
  // rows of the sum, kAllToAll its shares of the rows of all, after each other, kReduce the root the sum and the others
  // zeros. kBarrier has no tensors, and ends when all have come to it. Of bool there is no sum, but a least, which is
  // whether all are true, and a most, whether any is.
  // Throws Error: a call that fails at one task fails at all that have not ended it, and so do all after it. It is
  // kUnavailable if a task is gone, kFailedPrecondition if another process answers in its place, kDeadlineExceeded if
  // it does not come, kAborted if it was cancelled there.
  virtual std::vector<at::Tensor> run(const CollectiveCall& call, std::vector<at::Tensor> values,
                                      const Cancellation* cancellation = nullptr) = 0;
  // The same without waiting; its place among the calls is that of this one. Tensors that nobody but `values` has are
  // not copied. `done` is called once, on any thread; `cancellation` lives until then. Throws nothing.
  virtual void start(const CollectiveCall& call, std::vector<at::Tensor> values, const Cancellation* cancellation,
                     CollectiveDone done) = 0;

  // This task cannot go on with what all do together: no call ends well any more, at any task. Throws nothing.
  virtual void fail(const Status& why) = 0;
};

// The group with this number, as instructions name it. Throws Error{kNotFound}.
using FindGroup = std::function<std::shared_ptr<Collectives>(uint64_t number)>;

}  // namespace muster
