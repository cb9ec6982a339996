// The fuzzer's corpus as a unit test.
#include "muster/cluster/fuzz_target.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

namespace muster {
namespace {

using testing_support::try_cluster;

TEST(ClusterCorpus, FilesAreTakenAndSurviveWhicheverBitIsFlippedAndWhereverTheyAreCut) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(MUSTER_FUZZ_CORPUS)) {
    ++files;
    std::ifstream in(file.path(), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    EXPECT_TRUE(try_cluster(bytes)) << file.path();
    for (size_t i = 1; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
        try_cluster(damaged);
      }
      try_cluster(bytes.substr(0, i));
    }
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace muster
