// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <string_view>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/rpc/frame.h"

namespace muster::testing_support {

// What a peer writes on the wire. Whatever is a frame is one again after it was encoded. Returns whether it is one.
inline bool try_frame(std::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  try {
    Frame frame = decode(grpc::ByteBuffer(&slice, 1));
    const size_t tensors = frame.tensors.size();
    frame.envelope.clear_tensors();
    MUSTER_CHECK(decode(encode(std::move(frame))).tensors.size() == tensors);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support
