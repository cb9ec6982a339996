#include "muster/rpc/packed_tensor.h"

#include <ATen/ops/empty.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr size_t kWorthPacking = 1024;
constexpr size_t kTried = 64 * 1024;  // of a large tensor, before all of it is
constexpr size_t kMostRatio = 1032;   // of deflate, by its format
constexpr size_t kRoom = 1 << 30;     // zlib counts in 32 bits

bool gains(size_t packed, size_t plain) { return packed < plain - plain / 10; }

at::ScalarType sent_as(WireType type) { return type == WireType::kBFloat16 ? at::kBFloat16 : at::kHalf; }

at::Tensor bytes_tensor(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte)); }

// The first bytes of all elements, then the second ones, and so on: small integers are mostly zeros then, and the
// exponents of floats are alike.
void part_bytes(const uint8_t* from, uint8_t* to, size_t elements, size_t size) {
  for (size_t byte = 0; byte < size; ++byte) {
    for (size_t i = 0; i < elements; ++i) *to++ = from[i * size + byte];
  }
}
void join_bytes(const uint8_t* from, uint8_t* to, size_t elements, size_t size) {
  for (size_t byte = 0; byte < size; ++byte) {
    for (size_t i = 0; i < elements; ++i) to[i * size + byte] = *from++;
  }
}

// Nothing: there is no room for that, or no memory.
std::optional<size_t> deflate_bytes(const uint8_t* from, size_t bytes, uint8_t* to, size_t room) {
  z_stream stream{};
  // Runs and frequencies: what can be found in numbers whose bytes lie apart, at several times the speed of a search.
  if (::deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS, MAX_MEM_LEVEL, Z_RLE) != Z_OK) return std::nullopt;
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, &::deflateEnd);
  size_t written = 0;
  for (int result = Z_OK; result != Z_STREAM_END;) {
    const size_t in = std::min(bytes, kRoom), out = std::min(room - written, kRoom);
    if (out == 0) return std::nullopt;
    stream.next_in = const_cast<uint8_t*>(from);
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = to + written;
    stream.avail_out = static_cast<uInt>(out);
    result = ::deflate(&stream, in == bytes ? Z_FINISH : Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) return std::nullopt;
    from += in - stream.avail_in;
    bytes -= in - stream.avail_in;
    written += out - stream.avail_out;
  }
  return written;
}

// Whether that is exactly what comes out.
bool inflate_bytes(const uint8_t* from, size_t bytes, uint8_t* to, size_t expected) {
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) return false;
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, &::inflateEnd);
  size_t written = 0;
  for (int result = Z_OK; result == Z_OK;) {
    const size_t in = std::min(bytes, kRoom), out = std::min(expected - written, kRoom);
    stream.next_in = const_cast<uint8_t*>(from);
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = to + written;
    stream.avail_out = static_cast<uInt>(out);
    result = ::inflate(&stream, Z_NO_FLUSH);
    from += in - stream.avail_in;
    bytes -= in - stream.avail_in;
    written += out - stream.avail_out;
    if (result == Z_STREAM_END) return bytes == 0 && written == expected;
  }
  return false;
}

// Not defined: it is not worth it.
at::Tensor deflated(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes(), size = tensor.element_size();
  const auto* from = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const size_t tried = std::min(bytes, kTried) / size * size;
  std::vector<uint8_t> parted(tried);
  std::vector<uint8_t> made(tried);
  part_bytes(from, parted.data(), tried / size, size);
  const auto sample = deflate_bytes(parted.data(), tried, made.data(), made.size());
  if (!sample || !gains(*sample, tried)) return {};
  if (tried < bytes) {
    parted.resize(bytes);
    made.resize(bytes);
    part_bytes(from, parted.data(), bytes / size, size);
  }
  const auto written = tried < bytes ? deflate_bytes(parted.data(), bytes, made.data(), bytes) : sample;
  if (!written || !gains(*written, bytes)) return {};
  at::Tensor packed = bytes_tensor(*written);
  std::copy_n(made.data(), *written, static_cast<uint8_t*>(packed.mutable_data_ptr()));
  return packed;
}

at::Tensor inflated(const at::Tensor& packed, const TensorSpec& spec) {
  at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  std::vector<uint8_t> parted(tensor.nbytes());
  if (!inflate_bytes(static_cast<const uint8_t*>(packed.const_data_ptr()), packed.nbytes(), parted.data(),
                     parted.size())) {
    throw data_loss("a message whose deflated tensor is damaged, or is not ", spec.to_string());
  }
  const size_t size = tensor.element_size();
  join_bytes(parted.data(), static_cast<uint8_t*>(tensor.mutable_data_ptr()), parted.size() / size, size);
  return tensor;
}

TensorSpec narrowed(const TensorSpec& spec, WireType type) {
  return {type == WireType::kAsIs ? spec.dtype : dtype_of(sent_as(type)), spec.sizes};
}

}  // namespace

PackedTensor pack_tensor(const at::Tensor& tensor, const WireForm& form) {
  PackedTensor packed{tensor};
  if (tensor.nbytes() < kWorthPacking || form.plain()) return packed;
  MemoryPool::Use pool(true);
  if (form.type != WireType::kAsIs && tensor.scalar_type() == at::kFloat) {
    packed = {tensor.to(sent_as(form.type)), {.type = form.type}};
  }
  if (!form.deflate) return packed;
  if (at::Tensor fewer = deflated(packed.tensor); fewer.defined()) {
    packed.tensor = std::move(fewer);
    packed.form.deflate = true;
  }
  return packed;
}

TensorSpec packed_spec(const TensorSpec& spec, const WireForm& form, int64_t deflated_bytes) {
  if (form.type != WireType::kAsIs && spec.dtype != DType::kFloat) {
    throw invalid_argument("a message with ", spec.to_string(), " that was sent as ", form.to_string());
  }
  const TensorSpec narrow = narrowed(spec, form.type);
  if (!form.deflate) return narrow;
  if (deflated_bytes < 0 || narrow.bytes() / static_cast<int64_t>(kMostRatio) > deflated_bytes) {
    throw data_loss("a message with ", deflated_bytes, " bytes for a deflated ", spec.to_string());
  }
  return {DType::kByte, {deflated_bytes}};
}

at::Tensor unpack_tensor(const PackedTensor& packed, const TensorSpec& spec) {
  at::Tensor tensor = packed.tensor;
  if (packed.form.deflate) tensor = inflated(tensor, narrowed(spec, packed.form.type));
  return tensor.to(scalar_type_of(spec.dtype));
}

}  // namespace muster
