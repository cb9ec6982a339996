#include "muster/runtime/variables/variable_store.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include <atomic>
#include <utility>

#include "muster/base/blocking.h"
#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/variables/no_value.h"
#include "muster/runtime/variables/variable_shape.h"

namespace muster {
namespace {

uint64_t next_cell_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

VariableCell::VariableCell(std::string name, TensorSpec spec, at::Device device)
    : name_(std::move(name)), spec_(std::move(spec)), device_(device), id_(next_cell_id()) {}

bool VariableCell::initialized() const {
  absl::MutexLock lock(&mu_);
  return initialized_;
}

uint64_t VariableCell::version() const {
  absl::MutexLock lock(&mu_);
  return version_;
}

int VariableCell::waiting_writers() const {
  absl::MutexLock lock(&mu_);
  return waiting_writers_;
}

bool VariableCell::shares_memory_with(const at::Tensor& tensor) const {
  absl::MutexLock lock(&mu_);
  return value_.defined() && tensor.has_storage() && value_.is_alias_of(tensor);
}

void VariableCell::throw_uninitialized() const {
  throw Error(no_value(StatusCode::kFailedPrecondition, name_,
                       str_cat("variable \"", name_, "\" (", spec_.to_string(),
                               ") is not initialized; assign it a value or run its initializer first")));
}

bool VariableCell::incomplete() const { return value_.defined() && RowTable::of(value_) != nullptr; }

void VariableCell::turn(MatrixOrder order) {
  constexpr int kWorthTurning = 16;  // writes: turning a matrix twice takes as long as a few products save
  constexpr int kPatience = 4;
  const bool to_columns = order == MatrixOrder::kColumns;
  if (order == MatrixOrder::kEither || to_columns == in_columns(value_)) return;
  if (to_columns && turned_in_vain_ >= kPatience) return;
  if (!to_columns && writes_in_columns_ < kWorthTurning) ++turned_in_vain_;
  writes_in_columns_ = 0;
  PlainTensors plain;
  // A new tensor: those who look at the old one keep it.
  value_ = to_columns ? value_.t().contiguous().t() : value_.contiguous();
}

const at::Tensor& VariableCell::readable_value(bool by_rows, MatrixOrder order) {
  if (!initialized_) throw_uninitialized();
  if (!by_rows && incomplete()) {
    PlainTensors plain;
    value_ = RowTable::completed(value_);  // a new tensor: those who look at the rows of the old one keep it
  }
  turn(order);
  return value_;
}

void VariableCell::wait_until(Free free, const Cancellation* cancellation, Cancellation::Registration& woken) {
  if ((this->*free)()) return;
  mu_.Unlock();
  about_to_block();
  if (cancellation != nullptr) {
    woken = cancellation->on_cancel([this](const Status&) { absl::MutexLock looks_again(&mu_); });
  }
  mu_.Lock();
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (this->*free)() || (cancellation != nullptr && cancellation->cancelled());
  };
  mu_.Await(absl::Condition(&over));
  if (!(this->*free)()) throw Error(cancellation->status());
}

at::Tensor VariableCell::read(bool by_rows, MatrixOrder order, const Cancellation* cancellation) {
  Cancellation::Registration woken;
  absl::MutexLock lock(&mu_);
  wait_until(&VariableCell::idle, cancellation, woken);
  return readable_value(by_rows, order);
}

at::Tensor VariableCell::begin_read(bool by_rows, MatrixOrder order, const Cancellation* cancellation) {
  Cancellation::Registration woken;
  absl::MutexLock lock(&mu_);
  wait_until(&VariableCell::readable, cancellation, woken);
  at::Tensor value = readable_value(by_rows, order);
  ++readers_;
  return value;
}

at::Tensor VariableCell::begin_brief_read(bool by_rows) {
  Cancellation::Registration woken;
  absl::MutexLock lock(&mu_);
  wait_until(&VariableCell::idle, nullptr, woken);
  at::Tensor value = readable_value(by_rows, MatrixOrder::kRows);
  ++readers_;
  return value;
}

void VariableCell::end_read() {
  absl::MutexLock lock(&mu_);
  MUSTER_CHECK(readers_ > 0) << "variable " << name_;
  --readers_;
}

void VariableCell::assign(const at::Tensor& value) {
  TensorSpec given = spec_of(value);
  if (given.sizes != spec_.sizes) {
    throw invalid_argument("variable \"", name_, "\" is ", spec_.to_string(), "; cannot assign ", given.to_string());
  }
  at::Tensor target = begin_write(/*whole=*/true);
  try {
    PlainTensors plain;
    target.copy_(value);
  } catch (...) {
    end_write(/*keep=*/false);
    throw;
  }
  end_write();
}

void VariableCell::replace(at::Tensor value) {
  const TensorSpec given = spec_of(value);
  if (given != spec_ || value.device().type() != device_.type()) {
    throw invalid_argument("variable \"", name_, "\" is ", spec_.to_string(), "; cannot be ", given.to_string());
  }
  Cancellation::Registration woken;
  absl::MutexLock lock(&mu_);
  ++waiting_writers_;
  wait_until(&VariableCell::writable, nullptr, woken);
  --waiting_writers_;
  value_ = std::move(value);
  note_write(/*by_rows=*/false);
  initialized_ = true;
  ++version_;
}

at::Tensor VariableCell::new_memory() const {
  // A large table may be one of which only some rows will be used.
  constexpr int64_t kLarge = 64 << 20;
  if (device_.is_cpu() && spec_.bytes() >= kLarge) return RowTable::zeros(spec_);
  return at::empty(spec_.sizes, at::TensorOptions(scalar_type_of(spec_.dtype)).device(device_));
}

at::Tensor VariableCell::begin_write(bool whole, bool by_rows, MatrixOrder order, const Cancellation* cancellation) {
  Cancellation::Registration woken;
  absl::MutexLock lock(&mu_);
  ++waiting_writers_;
  try {
    wait_until(&VariableCell::writable, cancellation, woken);
  } catch (...) {
    --waiting_writers_;
    throw;
  }
  --waiting_writers_;
  if (!initialized_ && !whole) throw_uninitialized();
  PlainTensors plain;
  // What makes memory may throw; the variable then has the value that it had.
  if (!value_.defined() || (whole && incomplete())) {
    at::Tensor memory = new_memory();
    before_ = std::exchange(value_, std::move(memory));
  } else if (whole && value_.storage().use_count() > 1) {
    at::Tensor memory = at::empty(spec_.sizes, at::TensorOptions(scalar_type_of(spec_.dtype)).device(device_));
    before_ = std::exchange(value_, std::move(memory));
  } else if (incomplete()) {
    if (!by_rows) {
      value_ = RowTable::completed(value_);
    } else if (value_.storage().use_count() > 1 || value_.use_count() > 1) {
      value_ = RowTable::copy(value_);
    }
  } else {
    turn(order);
    if (value_.storage().use_count() > 1 || value_.use_count() > 1) {
      value_ = value_.clone(in_columns(value_) ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous);
    }
    if (in_columns(value_)) ++writes_in_columns_;
  }
  note_write(by_rows && !whole);
  writing_ = true;
  return value_;
}

void VariableCell::note_write(bool by_rows) {
  if (!changed_) return;
  if (!by_rows) return changed_->add_all();
  // The memory may be another one than the last time.
  if (ChangedRows::of(value_) != changed_.get()) ChangedRows::attach(value_, changed_);
}

std::shared_ptr<ChangedRows> VariableCell::changed_rows() {
  absl::MutexLock lock(&mu_);
  MUSTER_CHECK(!writing_) << "variable " << name_;
  if (!changed_) changed_ = std::make_shared<ChangedRows>(spec_.sizes.at(0));
  return changed_;
}

void VariableCell::end_write(bool keep) {
  absl::MutexLock lock(&mu_);
  MUSTER_CHECK(writing_) << "variable " << name_;
  writing_ = false;
  if (!keep && initialized_ && before_.defined()) value_ = std::move(before_);
  initialized_ = initialized_ || keep;
  if (!can_be(value_, spec_)) {
    // An op that resizes has been here, and its run has failed for that. It leaves the memory that there was.
    if (before_.defined()) {
      value_ = std::move(before_);
    } else {
      value_.unsafeGetTensorImpl()->set_storage_offset(0);
      value_.unsafeGetTensorImpl()->set_sizes_contiguous(spec_.sizes);
    }
    initialized_ = initialized_ && can_be(value_, spec_);
    if (!initialized_) value_.reset();
  }
  before_.reset();
  ++version_;
}

std::shared_ptr<VariableCell> VariableStore::declare(const std::string& name, const TensorSpec& spec,
                                                     at::Device device) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<VariableCell>& cell = cells_[name];
  if (!cell) cell = std::make_shared<VariableCell>(name, spec, device);
  if (cell->spec() != spec) {
    throw invalid_argument("variable \"", name, "\" is ", cell->spec().to_string(), ", but the program declares it as ",
                           spec.to_string());
  }
  return cell;
}

std::shared_ptr<VariableCell> VariableStore::declare_new(const std::string& wish, const TensorSpec& spec,
                                                         at::Device device) {
  absl::MutexLock lock(&mu_);
  std::string name = wish;
  for (int suffix = 1; cells_.contains(name); ++suffix) name = absl::StrCat(wish, "_", suffix);
  return cells_[name] = std::make_shared<VariableCell>(name, spec, device);
}

std::shared_ptr<VariableCell> VariableStore::find(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  auto it = cells_.find(name);
  return it == cells_.end() ? nullptr : it->second;
}

std::shared_ptr<VariableCell> VariableStore::owner_of(const at::Tensor& tensor) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [name, cell] : cells_) {
    if (cell->shares_memory_with(tensor)) return cell;
  }
  return nullptr;
}

void VariableStore::erase(const std::string& name) {
  absl::MutexLock lock(&mu_);
  cells_.erase(name);
}

std::vector<std::shared_ptr<VariableCell>> VariableStore::all() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<VariableCell>> cells;
  for (const auto& [name, cell] : cells_) cells.push_back(cell);
  return cells;
}

}  // namespace muster
