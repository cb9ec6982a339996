#include "muster/distribute/per_worker.h"

#include <ATen/ops/scalar_tensor.h>

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

class SourceResource : public PerWorkerResource {
 public:
  SourceResource(uint64_t number, std::shared_ptr<const std::vector<std::string>> descriptions)
      : number_(number), descriptions_(std::move(descriptions)) {}

  void create(Worker& worker, size_t index, const Owner& owner) override {
    // A worker that was lost and found may have it from before; the new one begins anew.
    worker.close_source(number_);
    worker.open_source(number_, (*descriptions_)[descriptions_->size() == 1 ? 0 : index], owner);
  }
  void drop(Worker& worker) override { worker.close_source(number_); }
  const std::string& name() const override { return name_; }

 private:
  const uint64_t number_;
  const std::shared_ptr<const std::vector<std::string>> descriptions_;
  const std::string name_ = "a per-worker dataset";
};

}  // namespace

PerWorkerIterator::PerWorkerIterator(std::shared_ptr<PerWorkerResource> resource, std::weak_ptr<ResourceKeeper> keeper,
                                     Iterator iterator)
    : iterator_(std::move(iterator)), resource_(std::move(resource)) {
  released_ = std::shared_ptr<void>(nullptr, [resource = resource_, keeper = std::move(keeper)](void*) {
    if (auto alive = keeper.lock()) alive->release(resource);
  });
}

PerWorkerDataset::PerWorkerDataset(std::vector<std::string> descriptions, Iterator pattern,
                                   std::weak_ptr<ResourceKeeper> keeper)
    : descriptions_(std::make_shared<const std::vector<std::string>>(std::move(descriptions))),
      pattern_(std::move(pattern)),
      keeper_(std::move(keeper)) {
  shared_ = std::make_shared<const PerWorkerIterator>(iterator());
}

PerWorkerIterator PerWorkerDataset::iterator() const {
  PlainTensors plain;
  const uint64_t number = random_id() >> 1;  // an int64 in programs
  Iterator iterator = pattern_;
  iterator.number = at::scalar_tensor(static_cast<int64_t>(number), at::TensorOptions(at::kLong));
  return {std::make_shared<SourceResource>(number, descriptions_), keeper_, std::move(iterator)};
}

}  // namespace muster
