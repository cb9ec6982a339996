// What the elements of a dataset are made of on their way: tensors, and strings until something turns them into
// numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

// A file that records are read from.
struct RecordFile {
  std::string path;
  const char* unit;  // "record", "line" or "row"
};

// Where a string was read, for the errors of whoever parses it. `file` lives as long as what has read it.
struct RecordOrigin {
  const RecordFile* file = nullptr;  // null: nobody knows
  int64_t number = 0;
  // `file "clicks.csv": line 18`; without a file, `record 3` of `number` in its batch.
  std::string to_string() const;
};

// Strings of any bytes in the shape of a tensor. They lie after each other in one piece of memory.
class Strings {
 public:
  Strings() = default;  // shape [0]
  // One, without a dimension.
  explicit Strings(std::string one, RecordOrigin origin = {}) : sizes_(), bytes_(std::move(one)), origin_(origin) {}

  // For those who fill it from the first to the last; then says what shape they have.
  void reserve(size_t count, size_t bytes);
  void append(std::string_view next);
  void append_all(const Strings& others);  // with their origins
  // Throws Error{kInvalidArgument} unless it has as many as were appended.
  void shape(std::vector<int64_t> sizes);

  at::IntArrayRef sizes() const { return sizes_; }
  size_t count() const { return ends_.empty() && sizes_.empty() ? 1 : ends_.size(); }
  size_t bytes() const { return bytes_.size(); }
  std::string_view operator[](size_t number) const {
    if (ends_.empty()) return bytes_;
    const size_t begin = number == 0 ? 0 : ends_[number - 1];
    return std::string_view(bytes_).substr(begin, ends_[number] - begin);
  }
  RecordOrigin origin(size_t number) const { return origins_.empty() ? origin_ : origins_[number]; }
  std::string take_bytes() && { return std::move(bytes_); }
  bool operator==(const Strings& other) const {
    return sizes_ == other.sizes_ && bytes_ == other.bytes_ && ends_ == other.ends_;
  }

 private:
  std::vector<int64_t> sizes_{0};
  std::string bytes_;
  std::vector<size_t> ends_;  // of each; none of a single one without a dimension
  RecordOrigin origin_;
  std::vector<RecordOrigin> origins_;  // of each, or none
};

// One of the two. Cheap to copy; what it holds is not written to.
class Column {
 public:
  Column() = default;
  Column(at::Tensor tensor) : tensor_(std::move(tensor)) {}                             // NOLINT: a tensor is a column
  Column(Strings strings) : strings_(std::make_shared<Strings>(std::move(strings))) {}  // NOLINT

  bool holds_strings() const { return strings_ != nullptr; }
  const at::Tensor& tensor() const { return tensor_; }  // REQUIRES: !holds_strings()
  const Strings& strings() const { return *strings_; }  // REQUIRES: holds_strings()
  at::IntArrayRef sizes() const { return strings_ ? strings_->sizes() : tensor_.sizes(); }
  // The only string; moved if nobody else holds it. REQUIRES: holds_strings(), and there is one.
  std::string take_text() &&;
  // "float32[3, 4]", "string[3]".
  std::string to_string() const;

 private:
  at::Tensor tensor_;
  std::shared_ptr<Strings> strings_;
};

using Columns = std::vector<Column>;

}  // namespace muster
