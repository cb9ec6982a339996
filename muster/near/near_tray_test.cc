#include "muster/near/near_tray.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace muster {
namespace {

constexpr size_t kWholeSize = SharedMemory::kHead + SharedMemory::kRoom;

SharedMemory opened(const SharedMemory& made) {
  return *SharedMemory::open(Descriptor(::dup(made.descriptor().number())));
}

// Two ends in one process.
struct TwoEnds {
  SharedMemory of_left = *SharedMemory::make(), of_right = *SharedMemory::make();
  SharedMemory seen_by_right = opened(of_left), seen_by_left = opened(of_right);
  NearTrays left{std::move(of_left), std::move(seen_by_left)};
  NearTrays right{std::move(of_right), std::move(seen_by_right)};
};

TEST(NearTrays, ShowWhatTheOtherOneHasPutThere) {
  TwoEnds ends;
  const std::string words = "what one has to say";

  const uint64_t place = *ends.left.put(words);

  const char* seen = ends.right.find(place, words.size());
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(std::string(seen, words.size()), words);
  ends.right.done_with(place);
}

TEST(NearTrays, AreUsedAgainWhenAllBeforeWasRead) {
  TwoEnds ends;
  const std::vector<char> piece(SharedMemory::kRoom / 4, 'x');
  std::vector<uint64_t> places;
  for (int i = 0; i < 4; ++i) places.push_back(*ends.left.put(piece));
  EXPECT_FALSE(ends.left.put(piece));
  for (const uint64_t place : places) ASSERT_NE(ends.right.find(place, piece.size()), nullptr);

  ends.right.done_with(places[1]);
  EXPECT_FALSE(ends.left.put(piece)) << "the first is still being read";
  ends.right.done_with(places[0]);

  EXPECT_TRUE(ends.left.put(piece));
  EXPECT_TRUE(ends.left.put(piece));
  EXPECT_FALSE(ends.left.put(piece));
}

TEST(NearTrays, GoAroundManyTimesWithPiecesOfAllSizes) {
  TwoEnds ends;

  for (int i = 0; i < 2'000; ++i) {
    const std::vector<char> piece(static_cast<size_t>(i * 7'919 % 1'000'000), static_cast<char>(i));
    const std::optional<uint64_t> place = ends.left.put(piece);
    ASSERT_TRUE(place) << i;
    const char* seen = ends.right.find(*place, piece.size());
    ASSERT_NE(seen, nullptr) << i;
    ASSERT_TRUE(std::equal(piece.begin(), piece.end(), seen)) << i;
    ends.right.done_with(*place);
  }
}

TEST(NearTrays, HaveNoPlaceThatIsNotTheirs) {
  TwoEnds ends;
  const uint64_t place = *ends.left.put(std::string(100, 'x'));

  EXPECT_EQ(ends.right.find(place + 1, 10), nullptr);
  EXPECT_EQ(ends.right.find(place, SharedMemory::kRoom + 1), nullptr);
  EXPECT_EQ(ends.right.find(SharedMemory::kRoom - 64, 65), nullptr);
  EXPECT_EQ(ends.right.find(~uint64_t{63}, 1), nullptr);
  ASSERT_NE(ends.right.find(place, 100), nullptr);
  EXPECT_EQ(ends.right.find(place, 100), nullptr) << "twice";
  ends.right.done_with(place);
}

TEST(NearTrays, TakeNoMoreThanThereIsRoomFor) {
  TwoEnds ends;
  EXPECT_FALSE(ends.left.put(std::vector<char>(SharedMemory::kRoom + 1)));
}

TEST(SharedMemory, OfAnotherKindIsNotOpened) {
  EXPECT_FALSE(SharedMemory::open(Descriptor()));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(SharedMemory::open(Descriptor(ends[0])));
  ::close(ends[1]);
  Descriptor shrinks(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(shrinks.number(), kWholeSize), 0);
  EXPECT_FALSE(SharedMemory::open(std::move(shrinks)));
  Descriptor small(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.number(), 4096), 0);
  ASSERT_EQ(::fcntl(small.number(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(SharedMemory::open(std::move(small)));
}

TEST(SharedMemory, IsWrittenByItsMakerAlone) {
  const SharedMemory made = *SharedMemory::make();

  EXPECT_EQ(::mmap(nullptr, kWholeSize, PROT_READ | PROT_WRITE, MAP_SHARED, made.descriptor().number(), 0), MAP_FAILED);
  EXPECT_NE(::ftruncate(made.descriptor().number(), 0), 0);
}

}  // namespace
}  // namespace muster
