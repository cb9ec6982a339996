// Hashes of bytes that are the same on all machines and forever, since they decide which row of a table a value has.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace muster {

// FarmHash's Fingerprint64, which TensorFlow calls Fingerprint64 and string_to_hash_bucket_fast.
uint64_t fingerprint64(std::string_view bytes);

// SipHash-2-4, TensorFlow's string_to_hash_bucket_strong.
uint64_t siphash(const std::array<uint64_t, 2>& key, std::string_view bytes);

}  // namespace muster
