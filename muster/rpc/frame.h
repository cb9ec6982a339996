// How a message lies on the wire: the length of an envelope, the envelope, and the bytes of its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/wire_form.h"
#include "muster/lines/parcel.h"
#include "muster/near/near_connection.h"
#include "muster/rpc/rpc.pb.h"

namespace muster {

// An envelope and its tensors.
struct Frame {
  proto::Envelope envelope{};
  std::vector<at::Tensor> tensors{};
  std::vector<WireForm> forms{};  // that they have on their way; none, or too few: as they are
  size_t fleeting = 0;            // of an answer: how many of the last ones are not kept for whoever asks again
};

// A large tensor is not copied: its memory is part of the message, and lives until the message is sent.
// Fills `envelope.tensors`.
grpc::ByteBuffer encode(Frame frame);

// The ways that large tensors can take beside their message. Of those that a receiver has, the first.
struct Ways {
  NearConnection* near = nullptr;  // it reads the memory of this process
  LinesOut* lines = nullptr;
};

// As `encode`, but all but small tensors are lent, and stay where they are for the receiver to copy; or they are a
// parcel, to be sent after the message.
struct LentFrame {
  grpc::ByteBuffer message{};
  LoanLedger::Loan loan{};           // none: it is not worth it, or too much was lent already
  std::shared_ptr<Parcel> parcel{};  // null: it is not worth it, or no line was free
  std::optional<Frame> frame{};      // if there is one or the other: all of it
  bool wants_line = false;           // it would have been worth it
};
LentFrame encode_for(const Ways& ways, Frame frame);
bool worth_a_parcel(const Frame& frame);

// How `decode` gets what is not in the message.
struct Borrowing {
  std::function<std::shared_ptr<NearConnection>(uint64_t key)> lender{};  // null: not known
  std::function<std::shared_ptr<LineIn>(uint64_t key)> line{};            // null: not known
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
  // For a parcel, which may have to be waited for.
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  const Cancellation* cancellation = nullptr;
};

// A tensor gets memory of its own and is copied into it once, from wherever the network has left it, or out of the
// sender's memory. Throws Error{kDataLoss} if the bytes are no frame, Error{kInvalidArgument} for a tensor that cannot
// exist, LoanLost if what was lent or sent apart cannot be had.
Frame decode(const grpc::ByteBuffer& message, const Borrowing& borrowing = {});
// What is known of a message before it is decoded.
struct FrameSigns {
  bool parcel = false;  // decoding waits for one
  bool heavy = false;   // its tensors and its answer take more than a little memory here
};
FrameSigns signs_of(const grpc::ByteBuffer& message);
inline bool comes_with_parcel(const grpc::ByteBuffer& message) { return signs_of(message).parcel; }
// How much, of one that is heavy. Throws as decode().
int64_t weight_of(const grpc::ByteBuffer& message);

struct LoanLost : Error {
  using Error::Error;
};

Frame with_header(const google::protobuf::MessageLite& header);

// The header in an envelope. Throws Error{kInvalidArgument}.
template <class Header>
Header header_of(const proto::Envelope& envelope) {
  Header header;
  if (!header.ParseFromString(envelope.header())) throw invalid_argument("a message whose header is damaged");
  return header;
}

proto::ErrorStatus to_proto(const Status& status);
Status from_proto(const proto::ErrorStatus& error);

}  // namespace muster
