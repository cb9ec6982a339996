#include "muster/collective/all_reduce_sizes.h"

#include <algorithm>
#include <limits>

#include "muster/base/status.h"
#include "muster/collective/seconds_of_ways.h"

namespace muster {
namespace {

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
// Each four times the one before: twice is less than two measurements differ by on a busy machine.
constexpr std::array<int64_t, 5> kTried{int64_t{8} << 10, int64_t{32} << 10, int64_t{128} << 10, int64_t{512} << 10,
                                        int64_t{2} << 20};
constexpr int kLost = 2;  // sizes at which a way was slower, until no larger one is tried

std::string bytes_in_words(int64_t bytes) {
  if (bytes >= 1 << 20) return str_cat(bytes >> 20, " MiB");
  return str_cat(bytes >> 10, " KiB");
}

}  // namespace

AllReduceSizes AllReduceSizes::always(AllReduceWay way) {
  switch (way) {
    case AllReduceWay::kInFirstMessage: return {.in_first_message = kEverything, .whole = kEverything};
    case AllReduceWay::kWhole: return {.in_first_message = -1, .whole = kEverything};
    case AllReduceWay::kInParts: break;
  }
  return {.in_first_message = -1, .whole = -1};
}

AllReduceSizes AllReduceSizes::usual(int ranks) {
  // Two ranks send each other no more whole than in parts, but add up everything instead of half of it.
  return {.in_first_message = 32 << 10, .whole = ranks == 2 ? 4 << 20 : 0};
}

std::string AllReduceSizes::to_string() const {
  return str_cat("sums of up to ", bytes_in_words(in_first_message), " go with the first message, ",
                 whole > in_first_message ? str_cat("of up to ", bytes_in_words(whole), " whole, ") : "",
                 "larger ones in parts");
}

MeasuredSizes measure_sizes(const TimeOfSum& time_of) {
  MeasuredSizes made{.least_bytes = kTried.front()};
  int first_message_lost = 0, whole_lost = 0;  // sizes; one may be an accident
  for (const int64_t bytes : kTried) {
    const auto [in_first_message, whole, in_parts] = time_of(bytes);
    made.most_bytes = bytes;
    made.most_seconds = std::min({in_first_message, whole, in_parts});
    if (bytes == made.least_bytes) made.least_seconds = made.most_seconds;
    // Of two that are as good, the one with fewer hops is taken.
    const bool first_message_pays = in_first_message <= kAsGood * std::min(whole, in_parts);
    first_message_lost = first_message_pays ? first_message_lost : first_message_lost + 1;
    if (first_message_pays && first_message_lost < kLost) made.sizes.in_first_message = bytes;
    whole_lost = std::min(in_first_message, whole) <= kAsGood * in_parts ? 0 : whole_lost + 1;
    if (whole_lost == 0) made.sizes.whole = bytes;
    if (whole_lost == kLost) break;
  }
  // What is smaller than anything that was tried is told in one hop anywhere.
  made.sizes.in_first_message = std::max(made.sizes.in_first_message, kTried.front());
  return made;
}

}  // namespace muster
