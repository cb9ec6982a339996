#include "muster/runtime/worker/run_options.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <vector>

namespace muster {
namespace {

// What splitmix64 was given: the inverse of the mixing that ids were once made with.
uint64_t unmixed(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089;
  x = x ^ (x >> 30) ^ (x >> 60);
  return x - 0x9e3779b97f4a7c15;
}

TEST(RandomId, DoesNotTellTheNextOne) {
  int successors = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t id = random_id();
    if (unmixed(random_id()) == unmixed(id) + 1) ++successors;
  }
  EXPECT_EQ(successors, 0);
}

TEST(RandomId, IsNeverGivenTwiceByManyThreads) {
  constexpr size_t kThreads = 4, kIds = 1000;
  std::vector<std::vector<uint64_t>> drawn(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : drawn) {
      threads.emplace_back([&ids] {
        for (size_t i = 0; i < kIds; ++i) ids.push_back(random_id());
      });
    }
  }
  std::set<uint64_t> all;
  for (const auto& ids : drawn) all.insert(ids.begin(), ids.end());
  EXPECT_EQ(all.size(), kThreads * kIds);
  EXPECT_FALSE(all.contains(0));
}

TEST(RandomId, IsAnotherOneInAForkedProcess) {
  random_id();  // from here on some are drawn in advance
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const uint64_t id = random_id();
    ::_exit(::write(pipe[1], &id, sizeof id) == sizeof id ? 0 : 1);
  }
  uint64_t theirs = 0;
  EXPECT_EQ(::read(pipe[0], &theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);

  for (int i = 0; i < 64; ++i) EXPECT_NE(random_id(), theirs);
}

}  // namespace
}  // namespace muster
