#include "muster/rpc/frame.h"

#include <ATen/ops/empty.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "muster/graph/dtype.h"
#include "muster/graph/program.h"
#include "muster/rpc/packed_tensor.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr size_t kCopied = 16 * 1024;  // what is smaller travels with the envelope: a slice of its own costs more
// Looking into another process has a price of its own: so much must be gained by it, and by every tensor.
constexpr size_t kWorthLending = 32 * 1024;
constexpr size_t kLent = 4 * 1024;
// And so much by what needs a system call or two at either end, and another one to confirm it.
constexpr size_t kWorthParcel = 128 * 1024;
constexpr size_t kLength = sizeof(uint32_t);
constexpr uint32_t kWithParcel = uint32_t{1} << 31, kHeavy = uint32_t{1} << 30;  // of the length, never that long
constexpr int64_t kHeavyBytes = 64 * 1024;
constexpr int kUndefined = -1;
constexpr int kMostDimensions = 64;

// Reads the slices of a message in order.
class Reader {
 public:
  explicit Reader(const grpc::ByteBuffer& message) : left_(message.Length()) {
    if (!message.Dump(&slices_).ok()) throw data_loss("a message that cannot be read");
  }

  size_t left() const { return left_; }

  void read(void* to, size_t bytes) {
    if (bytes > left_) throw data_loss("a message that ends ", bytes - left_, " bytes too early");
    auto* out = static_cast<char*>(to);
    left_ -= bytes;
    while (bytes > 0) {
      const grpc::Slice& slice = slices_[slice_];
      const size_t part = std::min(bytes, slice.size() - offset_);
      std::memcpy(out, slice.begin() + offset_, part);
      out += part;
      bytes -= part;
      offset_ += part;
      if (offset_ == slice.size()) {
        slices_[slice_++] = grpc::Slice();  // its memory can be used for what still comes
        offset_ = 0;
      }
    }
  }

 private:
  std::vector<grpc::Slice> slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  size_t left_;
};

TensorSpec spec_of_header(const proto::TensorHeader& header) {
  const std::optional<DType> dtype = dtype_from_number(header.dtype());
  if (!dtype || header.sizes_size() > kMostDimensions) {
    throw invalid_argument("a message with a tensor of an unknown type, or of ", header.sizes_size(), " dimensions");
  }
  TensorSpec spec{*dtype, {header.sizes().begin(), header.sizes().end()}};
  int64_t bytes = bytes_per_element(*dtype);
  for (int64_t size : spec.sizes) {
    // Of an empty one, too: its strides are computed.
    if (size < 0 || (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size)) {
      throw invalid_argument("a message with a tensor that has ", size, " elements in one dimension");
    }
    bytes *= std::max<int64_t>(size, 1);
  }
  return spec;
}

bool can_be_lent(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.nbytes() >= kLent;
}

size_t bytes_to_lend(const Frame& frame) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : frame.tensors) {
    if (can_be_lent(tensor)) bytes += tensor.nbytes();
  }
  return bytes;
}

void give_form(at::Tensor& tensor, const WireForm& form, proto::TensorHeader& header) {
  if (form.plain()) return;
  PackedTensor packed = pack_tensor(tensor, form);
  tensor = std::move(packed.tensor);
  header.set_form(packed.form.number());
  if (packed.form.deflate) header.set_deflated_bytes(static_cast<int64_t>(tensor.nbytes()));
}

// Fills the headers, and gives the tensors their forms.
void describe(Frame& frame) {
  frame.envelope.clear_tensors();
  bring_to_host(frame.tensors);
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    at::Tensor& tensor = frame.tensors[i];
    proto::TensorHeader& header = *frame.envelope.add_tensors();
    if (!tensor.defined()) {
      header.set_dtype(kUndefined);
      continue;
    }
    tensor = tensor.contiguous();
    header.set_dtype(static_cast<int32_t>(spec_of(tensor).dtype));
    for (int64_t size : tensor.sizes()) header.add_sizes(size);
    if (i < frame.forms.size()) give_form(tensor, frame.forms[i], header);
  }
}

// Those that are not sent as part of the message.
std::vector<at::Tensor> mark_lent(Frame& frame) {
  std::vector<at::Tensor> lent;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    if (!can_be_lent(frame.tensors[i])) continue;
    frame.envelope.mutable_tensors(static_cast<int>(i))->set_lent(true);
    lent.push_back(frame.tensors[i]);
  }
  return lent;
}

// What tensors and answer take where they arrive. Those that cannot exist are found when they are decoded.
int64_t weight_of(const proto::Envelope& envelope) {
  constexpr double kMost = 1e15;  // of each product, too: what is infinite is no number any more after a size of 0
  auto sum = static_cast<double>(envelope.answer_bytes());
  for (const proto::TensorHeader& header : envelope.tensors()) {
    const std::optional<DType> dtype = dtype_from_number(header.dtype());
    double bytes = dtype ? static_cast<double>(bytes_per_element(*dtype)) : 0;
    for (int64_t size : header.sizes()) {
      bytes = std::min(bytes * static_cast<double>(std::max<int64_t>(size, 0)), kMost);
    }
    sum += bytes;
  }
  return static_cast<int64_t>(std::clamp(sum, 1.0, kMost));
}

// The envelope as it is, and the tensors that are left.
grpc::ByteBuffer pack(const proto::Envelope& envelope, std::vector<at::Tensor> tensors) {
  const size_t length = envelope.ByteSizeLong();
  // The small tensors before the first large one follow the envelope in its slice, the others have slices of their own.
  size_t first = kLength + length;
  size_t leading = 0;
  while (leading < tensors.size() && tensors[leading].defined() && tensors[leading].nbytes() < kCopied) {
    first += tensors[leading++].nbytes();
  }
  std::vector<grpc::Slice> slices;
  grpc_slice head = grpc_slice_malloc(first);
  uint8_t* to = GRPC_SLICE_START_PTR(head);
  const uint32_t prefix = static_cast<uint32_t>(length) | (envelope.has_parcel() ? kWithParcel : 0) |
                          (weight_of(envelope) >= kHeavyBytes ? kHeavy : 0);
  std::memcpy(to, &prefix, kLength);
  envelope.SerializeWithCachedSizesToArray(to + kLength);
  to += kLength + length;
  for (size_t i = 0; i < leading; ++i) {
    if (tensors[i].nbytes() > 0) std::memcpy(to, tensors[i].const_data_ptr(), tensors[i].nbytes());
    to += tensors[i].nbytes();
  }
  slices.emplace_back(head, grpc::Slice::STEAL_REF);
  for (size_t i = leading; i < tensors.size(); ++i) {
    at::Tensor& tensor = tensors[i];
    if (!tensor.defined() || tensor.nbytes() == 0) continue;
    void* data = tensor.mutable_data_ptr();
    const size_t bytes = tensor.nbytes();
    if (bytes < kCopied) {
      slices.emplace_back(data, bytes);
      continue;
    }
    auto* held = new at::Tensor(std::move(tensor));
    slices.emplace_back(data, bytes, [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, held);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Copies what was lent or sent apart into `places`.
void borrow(const proto::Envelope& envelope, const std::vector<NearConnection::Place>& places,
            const Borrowing& borrowing) {
  if (envelope.has_parcel()) {
    const std::shared_ptr<LineIn> line = borrowing.line ? borrowing.line(envelope.parcel().line()) : nullptr;
    if (line && line->receive(envelope.parcel().number(), places, borrowing.until, borrowing.cancellation)) return;
    if (borrowing.cancellation != nullptr) borrowing.cancellation->throw_if_cancelled();
    throw LoanLost(Status(StatusCode::kUnavailable, "what was sent apart from its message has not come"));
  }
  const std::shared_ptr<NearConnection> lender = borrowing.lender ? borrowing.lender(envelope.near_key()) : nullptr;
  if (!lender || !lender->borrow({envelope.loan().slip(), envelope.loan().number()}, places)) {
    throw LoanLost(Status(StatusCode::kUnavailable, "the sender's memory cannot be read"));
  }
}

// A message that nobody can take is not to keep its sender waiting.
void refuse_parcel(const proto::Envelope& envelope, const Borrowing& borrowing) {
  if (!envelope.has_parcel() || !borrowing.line) return;
  if (const std::shared_ptr<LineIn> line = borrowing.line(envelope.parcel().line())) line->break_off();
}

// What comes of a tensor. Throws before any memory is asked for.
struct Coming {
  TensorSpec spec{};  // to its users
  WireForm form{};    // on the wire
  TensorSpec sent{};  // what has that form

  explicit Coming(const proto::TensorHeader& header) : spec(spec_of_header(header)), sent(spec) {
    if (header.form() == 0) return;
    const std::optional<WireForm> known = WireForm::from_number(header.form());
    if (!known) throw invalid_argument("a message with a tensor of an unknown form");
    form = *known;
    sent = packed_spec(spec, form, header.deflated_bytes());
  }
};

proto::Envelope read_envelope(Reader& reader) {
  uint32_t length = 0;
  reader.read(&length, kLength);
  const bool with_parcel = (length & kWithParcel) != 0, heavy = (length & kHeavy) != 0;
  length &= ~(kWithParcel | kHeavy);
  if (length > reader.left()) throw data_loss("a message whose envelope is longer than the message");
  std::string bytes(length, '\0');
  reader.read(bytes.data(), length);
  proto::Envelope envelope;
  if (!envelope.ParseFromString(bytes)) throw data_loss("a message whose envelope is damaged");
  if (with_parcel != envelope.has_parcel()) throw data_loss("a message that says nothing of its parcel");
  if (!heavy && weight_of(envelope) >= kHeavyBytes) throw data_loss("a message that is heavier than it says");
  return envelope;
}

void read_tensors(Reader& reader, Frame& frame, const Borrowing& borrowing) {
  PlainTensors plain;
  MemoryPool::Use pool(true);
  std::vector<NearConnection::Place> borrowed;
  std::vector<std::pair<size_t, Coming>> packed;
  int64_t borrowed_bytes = 0, packed_bytes = 0;
  for (const proto::TensorHeader& header : frame.envelope.tensors()) {
    if (header.dtype() == kUndefined) {
      frame.tensors.emplace_back();
      continue;
    }
    Coming coming(header);
    const TensorSpec& spec = coming.sent;
    // Before any memory is asked for.
    const bool lent = header.lent();
    if (lent && spec.bytes() > borrowing.most_bytes - borrowed_bytes) {
      throw resource_exhausted("a message that lends more than ", borrowing.most_bytes, " bytes");
    }
    if (!lent && spec.bytes() > static_cast<int64_t>(reader.left())) {
      throw data_loss("a message with ", reader.left(), " bytes left for ", spec.to_string());
    }
    if (!coming.form.plain() && coming.spec.bytes() > borrowing.most_bytes - packed_bytes) {
      throw resource_exhausted("a message that has packed more than ", borrowing.most_bytes, " bytes");
    }
    at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
    if (lent) {
      borrowed.push_back({tensor.mutable_data_ptr(), tensor.nbytes()});
      borrowed_bytes += spec.bytes();
    } else if (tensor.nbytes() > 0) {
      reader.read(tensor.mutable_data_ptr(), tensor.nbytes());
    }
    frame.tensors.push_back(std::move(tensor));
    if (coming.form.plain()) continue;
    packed_bytes += coming.spec.bytes();
    packed.emplace_back(frame.tensors.size() - 1, std::move(coming));
  }
  if (reader.left() > 0) throw data_loss("a message with ", reader.left(), " bytes after its last tensor");
  if (!borrowed.empty() || frame.envelope.has_parcel()) borrow(frame.envelope, borrowed, borrowing);
  for (const auto& [place, coming] : packed) {
    frame.tensors[place] = unpack_tensor({frame.tensors[place], coming.form}, coming.spec);
  }
}

}  // namespace

grpc::ByteBuffer encode(Frame frame) {
  PlainTensors plain;
  frame.envelope.clear_loan();
  frame.envelope.clear_parcel();
  describe(frame);
  return pack(frame.envelope, std::move(frame.tensors));
}

bool worth_a_parcel(const Frame& frame) { return bytes_to_lend(frame) >= kWorthParcel; }

LentFrame encode_for(const Ways& ways, Frame frame) {
  frame.envelope.set_near_key(ways.near != nullptr ? ways.near->key() : 0);
  const bool lends = ways.near != nullptr && ways.near->they_read() && bytes_to_lend(frame) >= kWorthLending;
  const bool parcels = !lends && ways.lines != nullptr && worth_a_parcel(frame);
  if (!lends && !parcels) return {.message = encode(std::move(frame))};
  PlainTensors plain;
  LentFrame result;
  if (parcels) result.parcel = ways.lines->take();
  if (parcels && !result.parcel) {
    frame.envelope.set_wants_line(true);
    result.wants_line = true;
    result.message = encode(std::move(frame));
    return result;
  }
  bring_to_host(frame.tensors);
  result.frame = frame;  // before its tensors have another form
  describe(frame);
  std::vector<at::Tensor> lent = mark_lent(frame);
  if (result.parcel) {
    frame.envelope.mutable_parcel()->set_line(result.parcel->name().line);
    frame.envelope.mutable_parcel()->set_number(result.parcel->name().number);
    result.parcel->fill(std::move(lent));
  } else {
    result.loan = ways.near->ledger().lend(std::move(lent));
    if (result.loan.number == 0) return {.message = encode(*std::move(result.frame))};
    frame.envelope.mutable_loan()->set_slip(result.loan.slip);
    frame.envelope.mutable_loan()->set_number(result.loan.number);
  }
  std::erase_if(frame.tensors, can_be_lent);
  result.message = pack(frame.envelope, std::move(frame.tensors));
  return result;
}

FrameSigns signs_of(const grpc::ByteBuffer& message) {
  if (message.Length() < kLength) return {};
  uint32_t length = 0;
  Reader(message).read(&length, kLength);
  return {(length & kWithParcel) != 0, (length & kHeavy) != 0};
}

int64_t weight_of(const grpc::ByteBuffer& message) {
  Reader reader(message);
  return weight_of(read_envelope(reader));
}

Frame decode(const grpc::ByteBuffer& message, const Borrowing& borrowing) {
  Reader reader(message);
  Frame frame{.envelope = read_envelope(reader)};
  try {
    read_tensors(reader, frame, borrowing);
  } catch (...) {
    refuse_parcel(frame.envelope, borrowing);
    throw;
  }
  return frame;
}

Frame with_header(const google::protobuf::MessageLite& header) {
  Frame frame;
  frame.envelope.set_header(header.SerializeAsString());
  return frame;
}

proto::ErrorStatus to_proto(const Status& status) {
  proto::ErrorStatus error;
  error.set_code(static_cast<int>(status.code()));
  error.set_message(status.message());
  error.set_task(status.task());
  error.set_detail(status.detail());
  return error;
}

Status from_proto(const proto::ErrorStatus& error) {
  const bool known = error.code() > 0 && error.code() <= static_cast<int>(StatusCode::kUnauthenticated);
  return {known ? static_cast<StatusCode>(error.code()) : StatusCode::kUnknown, error.message(), error.task(),
          error.detail()};
}

}  // namespace muster
