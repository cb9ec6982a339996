// What every worker has of its own: a sequence of examples, a variable.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/trace/iterator.h"
#include "muster/trace/variable.h"

namespace muster {

class Worker;

// Something that a worker must have before it can run the closures that use it. It is made when a worker first needs
// it, and again after the worker was restarted. Thread-safe.
class PerWorkerResource {
 public:
  virtual ~PerWorkerResource() = default;
  // `owner`: of what it leaves at the worker.
  virtual void create(const std::shared_ptr<Worker>& worker, size_t index, const Owner& owner) = 0;
  // Worker number `index` is lost, for now or for ever. True: it needs another one when it is back, whatever it has.
  virtual bool lost(size_t /*index*/) { return false; }
  virtual void drop(Worker& worker) = 0;
  virtual const std::string& name() const = 0;
  // Of a sequence: where all are, if that is known here; and where one of them is.
  virtual std::optional<std::string> position() const { return std::nullopt; }
  virtual std::string position_at(Worker& /*worker*/) const { return {}; }
};

// The coordinator's side of the resources' lives. Nobody who holds it keeps the coordinator.
class ResourceKeeper {
 public:
  virtual ~ResourceKeeper() = default;
  // Drops it at every worker that has it. Does not wait.
  virtual void release(std::shared_ptr<PerWorkerResource> resource) = 0;
};

// A sequence that every worker reads for itself. As an argument of schedule() it stands for its iterator there, the
// same in all calls. A handle, cheap to copy; the sequences end with the last copy.
class PerWorkerDataset {
 public:
  // `descriptions`: one for all workers, or one for each. `handed_out`: they read it together.
  // `dealt_before`: the position from which they go on then.
  PerWorkerDataset(std::vector<std::string> descriptions, bool handed_out, std::string dealt_before, Iterator pattern,
                   std::weak_ptr<ResourceKeeper> keeper);

  // A new one over the same examples: every worker begins at the beginning.
  PerWorkerDataset iterator() const;

  // What a traced function gets for it.
  const Iterator& argument() const { return argument_; }
  const std::shared_ptr<PerWorkerResource>& resource() const { return resource_; }
  // Counts as a copy: what is scheduled holds it until it has run.
  const std::shared_ptr<void>& hold() const { return released_; }

 private:
  void begin();

  std::shared_ptr<const std::vector<std::string>> descriptions_;
  bool handed_out_;
  std::string dealt_before_;
  std::weak_ptr<ResourceKeeper> keeper_;
  Iterator argument_;
  std::shared_ptr<PerWorkerResource> resource_;
  std::shared_ptr<void> released_;  // its end is the end of the last copy
};

// A variable of which every worker has its own: no other one sees what it writes there.
class PerWorkerVariable {
 public:
  PerWorkerVariable(Variable variable, std::shared_ptr<PerWorkerResource> resource)
      : variable_(std::move(variable)), resource_(std::move(resource)) {}

  const Variable& variable() const { return variable_; }
  operator const Variable&() const {
    return variable_;
  }  // NOLINT: inside a traced function it is its worker's variable
  const std::shared_ptr<PerWorkerResource>& resource() const { return resource_; }

 private:
  Variable variable_;
  std::shared_ptr<PerWorkerResource> resource_;
};

}  // namespace muster
