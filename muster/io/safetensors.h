// Files of tensors in the safetensors format, which Python's `safetensors` reads and writes too: the length of the
// header (8 bytes, little-endian), the header in JSON, and the data of all tensors without a gap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/program.h"
#include "muster/io/input_file.h"
#include "muster/io/output_file.h"
#include "muster/io/tensor_pieces.h"

namespace muster {

// What the format calls an element type, and back. Nothing for complex32 and complex128, which it does not have, and
// for what we do not have, such as "F8_E4M3".
std::optional<std::string_view> safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);
// Element types that libtorch has and programs have not ("U16", "U32", "U64", "F8_E4M3", "F8_E5M2"): a type of ours
// whose elements are as large. Nothing for others.
std::optional<DType> as_large_as(std::string_view foreign_type);

// TensorSpec::bytes() for sizes that come from a stranger. Nothing when one is negative or the product is too large,
// also where another one is 0: strides are products, too.
std::optional<int64_t> checked_bytes(const TensorSpec& spec);

struct NamedSpec {
  std::string name;
  TensorSpec spec;
  std::string_view foreign_type{};  // "F8_E4M3", with the type that is as large in the spec; empty: that is its own
};

// Writes one file: all names and specs first, for the header stands before the data, then the bytes of each tensor.
// Without finish() there is no file in the end. The data lies in the order of the list, without padding: a list in
// which element sizes fall keeps every tensor aligned for those who map the file.
// For one thread at a time.
class SafetensorsWriter {
 public:
  // Throws Error{kInvalidArgument} for a name twice, not in UTF-8 or with a NUL, Error{kUnimplemented} for an element
  // type that the format does not have, Error{kAlreadyExists} for a path where a file is.
  SafetensorsWriter(std::string path, std::vector<NamedSpec> tensors, std::map<std::string, std::string> metadata = {},
                    OutputFile::Cache cache = OutputFile::Cache::kPast);

  // The next tensor of the list: contiguous, little-endian. Gives the CRC-32C of the bytes.
  uint32_t write(std::string_view name, std::span<const std::byte> bytes);
  uint32_t write_pieces(std::string_view name, const TensorPieces& pieces);

  // REQUIRES: every tensor was written. The file is on the disk when this returns.
  void finish();

 private:
  const std::vector<NamedSpec> tensors_;
  size_t next_ = 0;
  OutputFile file_;
};

// Reads one file, which may come from a stranger: everything but the values is checked before the constructor returns.
// Immutable, so any thread may read.
// Limit: a bool is whatever byte the file has, also one that is neither 0 nor 1; read_weight() refuses it.
class SafetensorsFile {
 public:
  // A header of 100 MB is the most that others read too.
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;

  // Throws Error{kDataLoss} for a file that is not as the format says, Error{kUnimplemented} for an element type of
  // which we do not know how large it is, Error{kNotFound} for no file.
  explicit SafetensorsFile(std::string path, InputFile::Links links = InputFile::Links::kFollow);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::vector<std::string> names() const;  // in the order of the data

  bool has(std::string_view name) const { return tensors_.contains(name); }
  // Throws Error{kNotFound}, and Error{kUnimplemented} for a type that programs have not.
  const TensorSpec& spec(std::string_view name) const;
  // What such a type is called, and the spec with one that is as large; else "", and the spec.
  std::string_view foreign_type(std::string_view name) const;  // throws Error{kNotFound}
  const TensorSpec& stored_spec(std::string_view name) const;  // throws Error{kNotFound}
  std::vector<std::byte> bytes(std::string_view name) const;   // throws Error{kNotFound}
  // Fills `out` from byte `offset` of the tensor on. Throws Error{kOutOfRange} when it has not so many.
  void read(std::string_view name, int64_t offset, std::span<std::byte> out) const;
  // The same for the beginning of `out`, as InputFile::read_some().
  size_t read_some(std::string_view name, int64_t offset, std::span<std::byte> out) const;

 private:
  struct Tensor {
    TensorSpec spec;
    std::string_view foreign_type;
    int64_t begin;
    int64_t end;
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  Tensors::const_iterator find(std::string_view name) const;
  int64_t place_of(std::string_view name, int64_t offset, size_t bytes) const;
  std::vector<Tensors::const_iterator> by_place() const;

  const InputFile file_;
  std::map<std::string, std::string> metadata_;
  Tensors tensors_;
  int64_t data_begin_ = 0;
};

}  // namespace muster
