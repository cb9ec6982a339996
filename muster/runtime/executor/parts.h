// How the parts of a sequence of examples are handed out to those who read it together.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "muster/base/status.h"

namespace muster {

// A file, or a range of elements, in one of the rounds of a sequence.
struct SourcePart {
  int64_t round = 0, number = 0;

  auto operator<=>(const SourcePart&) const = default;
};

// What a reader asks for. It asks again until it has an answer to this request.
struct PartsWanted {
  int64_t request = 0;  // its number, from 1; 0: it wants nothing, and says what was used
  int64_t parts = 0;    // that a round has, as far as this reader sees
  uint64_t which = 0;   // a sum of the names of its files, or what else tells one sequence from another
  int64_t round = 0;    // in which it wants one
  bool late = false;    // it has ended before: it wants what others have left, of any round, and nothing new
  bool ended = false;   // it wants no part, but asks whether that was all
  // Then: so many elements it has that are not used, and all of them with who asks, so that nobody works with them; 0:
  // it has none, or there are others. A run that takes several at a time has too few at the end of the data.
  int64_t idle = 0;
  int64_t needs = 0;               // elements at least, of one reader: fewer are of no use to who asks
  std::vector<SourcePart> used{};  // whose elements were all used, as far as no request that was answered has said so
};

struct PartsGiven {
  enum class What {
    kNothing,    // there was no request yet
    kPart,       // read this one
    kRoundOver,  // the others have all that is left of this round
    kAgain,      // after the end: some parts have come back, begin once more
    kElsewhere,  // after the end: others still read
    kEnd,        // after the end: everything was used, or is of no use to who asks
    kError,
  };
  int64_t request = 0;  // that this answers
  What what = What::kNothing;
  SourcePart part{};
  Status error{};
};

using PartsDone = std::function<void(const Status&, PartsWanted)>;

// What a run fails with whose sequence has ended here while others still read theirs: nothing has happened, and it can
// be run elsewhere.
Error others_still_read();
bool is_read_elsewhere(const Status& status);

}  // namespace muster
