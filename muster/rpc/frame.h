// How a message lies on the wire: the length of an envelope, the envelope, and the bytes of its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <limits>
#include <vector>

#include "muster/base/status.h"
#include "muster/near/near_connection.h"
#include "muster/rpc/rpc.pb.h"

namespace muster {

// An envelope and its tensors.
struct Frame {
  proto::Envelope envelope{};
  std::vector<at::Tensor> tensors{};
};

// A large tensor is not copied: its memory is part of the message, and lives until the message is sent.
// Fills `envelope.tensors`.
grpc::ByteBuffer encode(Frame frame);

// As `encode`, but to a process that can read this one's memory all but small tensors are lent: they stay where they
// are, for the receiver to copy. No loan: it is not worth it, or too much was lent already. `receiver` may be null.
struct LentFrame {
  grpc::ByteBuffer message{};
  LoanLedger::Loan loan{};
};
LentFrame encode_for(NearConnection* receiver, Frame frame);

// Of whom and how much `decode` borrows.
struct Borrowing {
  std::function<std::shared_ptr<NearConnection>(uint64_t key)> lender{};  // null: not known
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
};

// A tensor gets memory of its own and is copied into it once, from wherever the network has left it, or out of the
// sender's memory. Throws Error{kDataLoss} if the bytes are no frame, Error{kInvalidArgument} for a tensor that cannot
// exist, LoanLost if what was lent cannot be read.
Frame decode(const grpc::ByteBuffer& message, const Borrowing& borrowing = {});

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
