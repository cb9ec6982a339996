#include "muster/near/near_memory.h"

#include <gtest/gtest.h>

#include "muster/near/test_process.h"

namespace muster {
namespace {

using testing_support::address_of;
using testing_support::OtherProcess;

TEST(NearMemory, CopiesPiecesOutOfAnotherProcess) {
  std::vector<int> numbers(100'000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
  uint64_t word = 7;
  OtherProcess other;
  const std::vector<int> expected = numbers;
  std::fill(numbers.begin(), numbers.end(), 0);  // here, and not there
  word = 0;

  std::vector<int> copy(numbers.size());
  uint64_t word_there = 0;
  std::vector<NearPiece> pieces;
  for (size_t i = 0; i < copy.size(); i += 50) {  // more than one system call takes
    pieces.push_back({&copy[i], address_of(&numbers[i]), 50 * sizeof(int)});
  }
  pieces.push_back({&word_there, address_of(&word), sizeof word});
  if (!read_memory(other.pid(), pieces)) GTEST_SKIP() << "this machine does not let a process read its child's memory";

  EXPECT_EQ(copy, expected);
  EXPECT_EQ(word_there, 7u);
  EXPECT_FALSE(read_memory(other.pid(), {{&word_there, 8, sizeof word}})) << "nobody has memory there";
  const pid_t gone = other.pid();
  other.end();
  EXPECT_FALSE(read_memory(gone, {{&word_there, address_of(&word), sizeof word}}));
}

}  // namespace
}  // namespace muster
