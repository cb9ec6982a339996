// Which way a sum takes, by how many bytes it has.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace muster {

// All of them add up in the same order, that of the ranks, or inside each machine first: they give the same bits.
enum class AllReduceWay {
  kInFirstMessage,  // everybody tells everybody what it has, together with what it does: one hop
  kWhole,           // the same in messages of their own, which are not copied
  // Each sums up a part for all: two hops, and the fewest bytes. Four where machines have several ranks each.
  kInParts,
};

// A value. The same at all ranks of a group, or they would wait for each other's messages in vain.
struct AllReduceSizes {
  int64_t in_first_message = 0, whole = 0;  // up to so many bytes

  AllReduceWay way_for(int64_t bytes) const {
    if (bytes <= in_first_message) return AllReduceWay::kInFirstMessage;
    return bytes <= whole ? AllReduceWay::kWhole : AllReduceWay::kInParts;
  }
  // So that every sum takes this way.
  static AllReduceSizes always(AllReduceWay way);
  // What suits most machines, for a group of so many ranks.
  static AllReduceSizes usual(int ranks);
  // "sums of up to 32 KiB go with the first message, of up to 4 MiB whole, larger ones in parts".
  std::string to_string() const;
};

struct MeasuredSizes {
  AllReduceSizes sizes{};
  int64_t least_bytes = 0, most_bytes = 0;  // that were tried
  double least_seconds = 0, most_seconds = 0;
};

// Seconds that a sum of so many bytes takes, by way. The same numbers at all ranks.
using TimeOfSum = std::function<std::array<double, 3>(int64_t bytes)>;

// Tries larger and larger sums until going whole does not pay any more.
MeasuredSizes measure_sizes(const TimeOfSum& time_of);

}  // namespace muster
