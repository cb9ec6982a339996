#include "muster/distribute/worker_share.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {

std::vector<int64_t> rows_of_steps(int64_t batch, int workers, int replicas_per_worker, int worker) {
  const int64_t replicas = int64_t{workers} * replicas_per_worker, each = batch / replicas, more = batch % replicas;
  std::vector<int64_t> rows;
  for (int step = 0; step < workers; ++step) {
    // The replicas that have one row more are those of another worker in each step.
    const int64_t first = int64_t{(worker + step) % workers} * replicas_per_worker;
    rows.push_back(each * replicas_per_worker + std::clamp<int64_t>(more - first, 0, replicas_per_worker));
  }
  return rows;
}

WorkerShare::WorkerShare(std::unique_ptr<ElementSource> source, WorkerShareOptions options)
    : source_(std::move(source)), options_(std::move(options)) {}

std::optional<Element> WorkerShare::next() {
  PlainTensors plain;
  absl::MutexLock lock(&mu_);
  if (ended_) return std::nullopt;
  std::optional<Element> element;
  try {
    element = own();
  } catch (const Error& error) {
    if (error.code() != StatusCode::kCancelled) tell_others(error.status());
    throw;
  }
  if (in_step_ == 0 && !anybody_goes_on(element.has_value())) {
    ended_ = true;
    return std::nullopt;
  }
  in_step_ = (in_step_ + 1) % options_.per_step;
  return element ? std::move(element) : without_rows();
}

std::optional<Element> WorkerShare::own() {
  if (options_.rows.empty()) return source_->next();
  const int64_t wanted = options_.rows[step_ % options_.rows.size()];
  while (rows_in(rest_) < std::max<int64_t>(wanted, 1)) {
    std::optional<Element> batch = source_->next();
    if (!batch) break;
    rows_in(*batch);  // before it is with the rest
    for (size_t i = 0; i < batch->size() && !rest_.empty(); ++i) batch->at(i) = at::cat({rest_.at(i), batch->at(i)});
    rest_ = *std::move(batch);
  }
  const int64_t left = rows_in(rest_), taken = std::min(wanted, left);
  if (left == 0) return std::nullopt;
  ++step_;
  Element rows;
  for (at::Tensor& tensor : rest_) {
    rows.push_back(tensor.narrow(0, 0, taken));
    tensor = tensor.narrow(0, taken, left - taken);
  }
  if (taken == left) rest_.clear();
  return rows;
}

int64_t WorkerShare::rows_in(const Element& batch) const {
  for (const at::Tensor& tensor : batch) {
    if (tensor.dim() > 0 && tensor.size(0) == batch[0].size(0)) continue;
    ElementSpec found;
    for (const at::Tensor& each : batch) found.push_back(spec_of(each));
    throw invalid_argument("distribute: an element is ", describe_elements({found}),
                           ", expected batches whose tensors have as many rows, to divide them over the workers; "
                           "distribute(function) gives each replica elements of its own");
  }
  return batch.empty() ? 0 : batch[0].size(0);
}

bool WorkerShare::anybody_goes_on(bool here) const {
  if (options_.across.alone()) return here;
  if (options_.endless) return true;
  const at::Tensor own = at::scalar_tensor(here ? 1 : 0, at::TensorOptions(at::kLong));
  const CollectiveCall call{.reduction = Reduction::kMax, .purpose = "the end of a sequence"};
  return local_worker().group(options_.across.group)->run(call, {own})[0].item().toLong() != 0;
}

Element WorkerShare::without_rows() const {
  Element none;
  for (const TensorSpec& spec : options_.spec) {
    if (spec.sizes.empty()) {
      const Error error =
          out_of_range("the sequence of examples has ended before those of other replicas, and its elements are ",
                       describe_elements({options_.spec}), ", of which none can be without rows; add batch(n)");
      tell_others(error.status());
      throw error;
    }
    std::vector<int64_t> sizes = spec.sizes;
    sizes[0] = 0;
    none.push_back(at::empty(sizes, at::TensorOptions(scalar_type_of(spec.dtype))));
  }
  return none;
}

// They would wait for this one.
void WorkerShare::tell_others(const Status& failure) const {
  if (!options_.across.alone()) local_worker().group(options_.across.group)->fail(failure);
}

bool WorkerShare::begin_again() {
  absl::MutexLock lock(&mu_);
  if (!source_->begin_again()) return false;
  rest_.clear();
  step_ = 0;
  in_step_ = 0;
  ended_ = false;
  return true;
}

}  // namespace muster
