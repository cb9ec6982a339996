// How a message lies on the wire: the length of an envelope, the envelope, and the bytes of its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <vector>

#include "muster/base/status.h"
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

// A tensor gets memory of its own and is copied into it once, from wherever the network has left it. Throws
// Error{kDataLoss} if the bytes are no frame, Error{kInvalidArgument} for a tensor that cannot exist.
Frame decode(const grpc::ByteBuffer& message);

Frame with_header(const google::protobuf::MessageLite& header, uint64_t request_id = 0);

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
