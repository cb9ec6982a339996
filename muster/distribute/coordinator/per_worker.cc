#include "muster/distribute/coordinator/per_worker.h"

#include <ATen/ops/scalar_tensor.h>

#include <map>
#include <set>

#include "muster/base/status.h"
#include "muster/distribute/coordinator/part_dealer.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

class SourceResource : public PerWorkerResource {
 public:
  SourceResource(uint64_t number, std::shared_ptr<const std::vector<std::string>> descriptions)
      : number_(number), descriptions_(std::move(descriptions)) {}

  void create(const std::shared_ptr<Worker>& worker, size_t index, const Owner& owner) override {
    // A worker that was lost and found may have it from before; the new one begins anew.
    if (!first_at(index)) worker->close_source(number_);
    worker->open_source(number_, (*descriptions_)[descriptions_->size() == 1 ? 0 : index], owner);
  }
  void drop(Worker& worker) override { worker.close_source(number_); }
  const std::string& name() const override { return name_; }
  std::string position_at(Worker& worker) const override { return worker.source_position(number_); }

 protected:
  uint64_t number() const { return number_; }

 private:
  bool first_at(size_t index) {
    absl::MutexLock lock(&mu_);
    return tried_at_.insert(index).second;
  }

  const uint64_t number_;
  const std::shared_ptr<const std::vector<std::string>> descriptions_;
  const std::string name_ = "a per-worker dataset";
  absl::Mutex mu_;
  std::set<size_t> tried_at_ ABSL_GUARDED_BY(mu_);  // workers, which may have it
};

// The same for a sequence that the workers read together.
class SharedSourceResource : public SourceResource {
 public:
  SharedSourceResource(uint64_t number, std::shared_ptr<const std::vector<std::string>> descriptions,
                       const std::string& dealt_before)
      : SourceResource(number, std::move(descriptions)) {
    if (!dealt_before.empty()) dealer_->set_position(dealt_before);
  }
  ~SharedSourceResource() override {
    for (const auto& [index, handing_out] : handing_out_) handing_out->stop();
  }

  void create(const std::shared_ptr<Worker>& worker, size_t index, const Owner& owner) override {
    lost(index);
    SourceResource::create(worker, index, owner);
    auto handing_out = std::make_shared<HandingOut>(dealer_, worker, number(), index);
    {
      absl::MutexLock lock(&mu_);
      handing_out_[index] = handing_out;
    }
    handing_out->begin();
  }
  std::optional<std::string> position() const override { return dealer_->position(); }
  bool lost(size_t index) override {
    std::shared_ptr<HandingOut> stopped;
    {
      absl::MutexLock lock(&mu_);
      if (auto found = handing_out_.extract(index)) stopped = std::move(found.mapped());
    }
    if (stopped) stopped->stop();
    dealer_->lost(index);
    return true;
  }

 private:
  const std::shared_ptr<PartDealer> dealer_ = std::make_shared<PartDealer>();
  absl::Mutex mu_;
  std::map<size_t, std::shared_ptr<HandingOut>> handing_out_ ABSL_GUARDED_BY(mu_);  // by worker
};

}  // namespace

PerWorkerDataset::PerWorkerDataset(std::vector<std::string> descriptions, bool handed_out, std::string dealt_before,
                                   Iterator pattern, std::weak_ptr<ResourceKeeper> keeper)
    : descriptions_(std::make_shared<const std::vector<std::string>>(std::move(descriptions))),
      handed_out_(handed_out),
      dealt_before_(std::move(dealt_before)),
      keeper_(std::move(keeper)),
      argument_(std::move(pattern)) {
  begin();
}

PerWorkerDataset PerWorkerDataset::iterator() const {
  PerWorkerDataset anew = *this;
  anew.begin();
  return anew;
}

void PerWorkerDataset::begin() {
  PlainTensors plain;
  const uint64_t number = random_id() >> 1;  // an int64 in programs
  argument_.number = at::scalar_tensor(static_cast<int64_t>(number), at::TensorOptions(at::kLong));
  if (handed_out_) {
    resource_ = std::make_shared<SharedSourceResource>(number, descriptions_, dealt_before_);
  } else {
    resource_ = std::make_shared<SourceResource>(number, descriptions_);
  }
  released_ = std::shared_ptr<void>(nullptr, [resource = resource_, keeper = keeper_](void*) {
    if (auto alive = keeper.lock()) alive->release(resource);
  });
}

}  // namespace muster
