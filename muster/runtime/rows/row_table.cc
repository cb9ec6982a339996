#include "muster/runtime/rows/row_table.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Addresses of zeros; none for no bytes.
void* reserve(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_exhausted("no addresses left for ", bytes, " bytes");
  return memory;
}

void release(void* memory, size_t bytes) {
  if (memory != nullptr) ::munmap(memory, bytes);
}

// 64 random bits that depend on both numbers alone (the finalizer of SplitMix64).
uint64_t random_bits(uint64_t seed, uint64_t place) {
  uint64_t bits = seed + (place + 1) * 0x9E3779B97F4A7C15ULL;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31);
}

double number(const RowRule& rule, uint64_t place) {
  if (rule.kind == RowRule::kConstant) return rule.a;
  const uint64_t bits = random_bits(rule.seed, place);
  if (rule.kind == RowRule::kUniform) return rule.a + (rule.b - rule.a) * (static_cast<double>(bits >> 40) * 0x1p-24);
  const double radius = std::sqrt(-2 * std::log((static_cast<double>(bits >> 32) + 1) * 0x1p-32));
  return rule.a + rule.b * radius * std::cos(2 * std::numbers::pi * static_cast<double>(bits & 0xFFFFFFFF) * 0x1p-32);
}

}  // namespace

at::Tensor RowTable::zeros(const TensorSpec& spec) {
  constexpr size_t kWorthReserving = 1 << 20;
  const auto options = at::TensorOptions(scalar_type_of(spec.dtype));
  const auto bytes = static_cast<size_t>(spec.bytes());
  if (bytes < kWorthReserving) return at::zeros(spec.sizes, options);
  return at::from_blob(reserve(bytes), spec.sizes, [bytes](void* memory) { release(memory, bytes); }, options);
}

RowTable::RowTable(const at::Tensor& like, const RowRule& rule)
    : rule_(rule),
      type_(like.scalar_type()),
      rows_(like.size(0)),
      width_(rows_ == 0 ? 0 : like.numel() / rows_),
      row_bytes_(static_cast<size_t>(width_) * like.itemsize()) {
  memory_ = static_cast<char*>(reserve(like.nbytes()));
  try {
    written_ = static_cast<uint8_t*>(reserve(static_cast<size_t>(rows_)));
  } catch (...) {
    release(memory_, like.nbytes());
    throw;
  }
}

RowTable::~RowTable() {
  release(memory_, static_cast<size_t>(rows_) * row_bytes_);
  release(written_, static_cast<size_t>(rows_));
}

void RowTable::destroy(void* table) { delete static_cast<RowTable*>(table); }

void RowTable::begin(const at::Tensor& tensor, const RowRule& rule) {
  // The memory of the whole storage is replaced, so nobody may see more of it than this table does. Rows without
  // elements cost their makers nothing, but there is a note for each.
  constexpr int64_t kMostRowsOfNothing = 1 << 20;
  if (!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0 || !tensor.is_contiguous() ||
      tensor.storage_offset() != 0 || tensor.storage().nbytes() != tensor.nbytes() ||
      (tensor.numel() == 0 && tensor.size(0) > kMostRowsOfNothing)) {
    throw invalid_argument("rows on demand need a contiguous table on the CPU that is no view of a larger one, got ",
                           tensor.defined() ? spec_of(tensor).to_string() : "an undefined tensor");
  }
  const int64_t width = tensor.numel() == 0 ? 1 : tensor.numel() / tensor.size(0);
  if (rule.kind < RowRule::kConstant || rule.kind > RowRule::kNormal || rule.first_row < 0 ||
      rule.first_row > std::numeric_limits<int64_t>::max() / width - tensor.size(0)) {
    throw invalid_argument("rows on demand: rule ", static_cast<int64_t>(rule.kind), " from row ", rule.first_row,
                           " of ", spec_of(tensor).to_string(), " is none");
  }
  auto* table = new RowTable(tensor, rule);  // owned by the storage from now on
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(table->memory_, table, &RowTable::destroy, at::Device(at::kCPU)));
}

RowTable* RowTable::of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return nullptr;
  return tensor.storage().data_ptr().cast_context<RowTable>(&RowTable::destroy);
}

bool RowTable::is_whole(const at::Tensor& tensor) const {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.scalar_type() == type_ && tensor.dim() > 0 &&
         tensor.size(0) == rows_ && tensor.numel() == rows_ * width_;
}

at::Tensor RowTable::copy(const at::Tensor& tensor) {
  const RowTable* from = of(tensor);
  MUSTER_CHECK(from != nullptr);
  at::Tensor made = zeros(spec_of(tensor));
  begin(made, from->rule_);
  RowTable* to = of(made);
  for (int64_t row : from->written_rows()) {
    const size_t at = static_cast<size_t>(row) * from->row_bytes_;
    std::memcpy(to->memory_ + at, from->memory_ + at, from->row_bytes_);
    to->written_[row] = 1;
  }
  return made;
}

at::Tensor RowTable::completed(const at::Tensor& tensor) {
  const RowTable* from = of(tensor);
  if (from == nullptr) return tensor;
  at::Tensor made = at::empty(tensor.sizes(), tensor.options());
  auto* to = static_cast<char*>(made.mutable_data_ptr());
  for (int64_t row = 0; row < from->rows_; ++row, to += from->row_bytes_) {
    if (from->written(row)) {
      std::memcpy(to, from->memory_ + static_cast<size_t>(row) * from->row_bytes_, from->row_bytes_);
    } else {
      from->initial(row, to);
    }
  }
  return made;
}

void RowTable::initial(int64_t row, void* to) const {
  const auto place = static_cast<uint64_t>((rule_.first_row + row) * width_);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type_, "rows on demand", [&] {
    auto* element = static_cast<scalar_t*>(to);
    for (int64_t i = 0; i < width_; ++i) {
      element[i] = static_cast<scalar_t>(number(rule_, place + static_cast<uint64_t>(i)));
    }
  });
}

void RowTable::write(int64_t row) {
  if (written(row)) return;
  initial(row, memory_ + static_cast<size_t>(row) * row_bytes_);
  written_[row] = 1;
}

std::vector<int64_t> RowTable::written_rows() const {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < rows_; ++row) {
    if (written(row)) rows.push_back(row);
  }
  return rows;
}

}  // namespace muster
