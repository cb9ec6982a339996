// Messages that no honest client sends.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "muster/rpc/frame.h"

namespace muster::testing_support {

inline constexpr uint32_t kSaysHeavy = uint32_t{1} << 30;

// `flags`: of the length of the envelope.
inline grpc::ByteBuffer message_with(const proto::Envelope& envelope, uint32_t flags = 0) {
  const std::string bytes = envelope.SerializeAsString();
  const uint32_t length = static_cast<uint32_t>(bytes.size()) | flags;
  const grpc::Slice slices[] = {grpc::Slice(&length, sizeof length), grpc::Slice(bytes)};
  return grpc::ByteBuffer(slices, 2);
}

// What the server says to it.
inline proto::Envelope say(const std::string& address, const std::string& method, const proto::Envelope& envelope,
                           uint32_t flags = 0) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::ByteBuffer answer;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, message_with(envelope, flags), &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return decode(answer).envelope;
}

}  // namespace muster::testing_support
