#include "muster/data/preprocessing/fingerprint.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "the hashes read the bytes as little-endian numbers");

// FarmHash's constants: primes between 2^63 and 2^64.
constexpr uint64_t kPrime0 = 0xc3a5c85c97cb3127, kPrime1 = 0xb492b66fbe98f273, kPrime2 = 0x9ae16a3b2f90404f;

template <class Word>
uint64_t word_at(const char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}
uint64_t eight_at(const char* bytes) { return word_at<uint64_t>(bytes); }

uint64_t fold_down(uint64_t value) { return value ^ value >> 47; }

uint64_t mixed(uint64_t low, uint64_t high, uint64_t factor) {
  const uint64_t first = fold_down((low ^ high) * factor);
  return fold_down((high ^ first) * factor) * factor;
}

uint64_t fingerprint_to_16(const char* bytes, size_t length) {
  const uint64_t factor = kPrime2 + 2 * length;
  if (length >= 8) {
    const uint64_t head = eight_at(bytes) + kPrime2, tail = eight_at(bytes + length - 8);
    return mixed(std::rotr(tail, 37) * factor + head, (std::rotr(head, 25) + tail) * factor, factor);
  }
  if (length >= 4) {
    return mixed(length + (word_at<uint32_t>(bytes) << 3), word_at<uint32_t>(bytes + length - 4), factor);
  }
  if (length == 0) return kPrime2;
  const uint64_t first = word_at<uint8_t>(bytes), middle = word_at<uint8_t>(bytes + length / 2);
  const uint64_t last = word_at<uint8_t>(bytes + length - 1);
  return fold_down((first + (middle << 8)) * kPrime2 ^ (length + (last << 2)) * kPrime0) * kPrime2;
}

// What the hashes of 17 to 32 and of 33 to 64 bytes have in common: the first and the last 16 bytes.
struct Ends {
  Ends(const char* bytes, size_t length, uint64_t first_factor, uint64_t factor) {
    first = eight_at(bytes) * first_factor;
    const uint64_t second = eight_at(bytes + 8), last = eight_at(bytes + length - 8) * factor;
    low = std::rotr(first + second, 43) + std::rotr(last, 30) + eight_at(bytes + length - 16) * kPrime2;
    high = first + std::rotr(second + kPrime2, 18) + last;
  }
  uint64_t first, low, high;
};

uint64_t fingerprint_to_32(const char* bytes, size_t length) {
  const uint64_t factor = kPrime2 + 2 * length;
  const Ends ends(bytes, length, kPrime1, factor);
  return mixed(ends.low, ends.high, factor);
}

uint64_t fingerprint_to_64(const char* bytes, size_t length) {
  const uint64_t factor = kPrime2 + 2 * length;
  const Ends ends(bytes, length, kPrime2, factor);
  const uint64_t third = eight_at(bytes + 16) * factor, fourth = eight_at(bytes + 24);
  const uint64_t low = (ends.low + eight_at(bytes + length - 32)) * factor;
  const uint64_t high = (mixed(ends.low, ends.high, factor) + eight_at(bytes + length - 24)) * factor;
  return mixed(std::rotr(third + fourth, 43) + std::rotr(low, 30) + high,
               third + std::rotr(fourth + ends.first, 18) + low, factor);
}

// The state of the hash of more than 64 bytes; takes 64 at a time.
struct LongFingerprint {
  struct Pair {
    uint64_t first = 0, second = 0;
  };
  static Pair absorbed(const char* bytes, uint64_t first, uint64_t second) {
    const uint64_t last = eight_at(bytes + 24);
    first += eight_at(bytes);
    const uint64_t sum = first + eight_at(bytes + 8) + eight_at(bytes + 16);
    return {sum + last, std::rotr(second + first + last, 21) + std::rotr(sum, 44) + first};
  }

  uint64_t x, y, z;
  Pair v, w;

  // The last 64 bytes are weighted otherwise than those before.
  void take(const char* bytes, uint64_t factor, uint64_t weight) {
    x = std::rotr(x + y + v.first + eight_at(bytes + 8), 37) * factor;
    y = std::rotr(y + v.second + eight_at(bytes + 48), 42) * factor;
    x ^= w.second * weight;
    y += v.first * weight + eight_at(bytes + 40);
    z = std::rotr(z + w.first, 33) * factor;
    v = absorbed(bytes, v.second * factor, x + w.first);
    w = absorbed(bytes + 32, z + w.second, y + eight_at(bytes + 16));
    std::swap(x, z);
  }
};

uint64_t fingerprint_long(const char* bytes, size_t length) {
  constexpr uint64_t kSeed = 81, kStart = kSeed * kPrime1 + 113;
  LongFingerprint state{kSeed * kPrime2 + eight_at(bytes), kStart, fold_down(kStart * kPrime2 + 113) * kPrime2, {}, {}};
  const size_t blocks = (length - 1) / 64;  // leaves 1 to 64 bytes
  for (size_t block = 0; block < blocks; ++block) state.take(bytes + 64 * block, kPrime1, 1);
  const uint64_t factor = kPrime1 + ((state.z & 0xff) << 1);
  state.w.first += (length - 1) & 63;
  state.v.first += state.w.first;
  state.w.first += state.v.first;
  state.take(bytes + length - 64, factor, 9);
  return mixed(mixed(state.v.first, state.w.first, factor) + fold_down(state.y) * kPrime0 + state.z,
               mixed(state.v.second, state.w.second, factor) + state.x, factor);
}

struct SipState {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (; count > 0; --count) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }
  void take(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
};

}  // namespace

uint64_t fingerprint64(std::string_view bytes) {
  if (bytes.size() <= 16) return fingerprint_to_16(bytes.data(), bytes.size());
  if (bytes.size() <= 32) return fingerprint_to_32(bytes.data(), bytes.size());
  if (bytes.size() <= 64) return fingerprint_to_64(bytes.data(), bytes.size());
  return fingerprint_long(bytes.data(), bytes.size());
}

uint64_t siphash(const std::array<uint64_t, 2>& key, std::string_view bytes) {
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                 key[1] ^ 0x7465646279746573};
  const size_t words = bytes.size() / 8;
  for (size_t word = 0; word < words; ++word) state.take(eight_at(bytes.data() + 8 * word));
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  if (const std::string_view rest = bytes.substr(8 * words); !rest.empty())
    std::memcpy(&last, rest.data(), rest.size());
  state.take(last);
  state.v2 ^= 0xff;
  state.rounds(4);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace muster
