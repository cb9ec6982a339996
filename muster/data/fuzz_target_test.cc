// The fuzzer's corpus as a unit test.
#include "muster/data/fuzz_target.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

namespace muster {
namespace {

using testing_support::try_dataset;

std::vector<std::pair<std::string, std::string>> dataset_seeds() {
  const Dataset rows = Dataset::tensors({at::arange(8).view({4, 2}), at::ones({4}, at::kBool)}).shuffle(4, 3, false);
  const Dataset steps =
      Dataset::zip({Dataset::synthetic_digits(8, 5).shard(2, 1).skip(1).cache(), rows}).batch(2, true);
  return {{"range", Dataset::range(100, 0, -2).map([](at::Tensor x) { return x + 1; }).serialize()},
          {"steps", steps.take(4).repeat(2).prefetch(2).serialize()}};
}

TEST(DatasetCorpus, SeedsAreTaken) {
  for (const auto& [name, bytes] : dataset_seeds()) EXPECT_TRUE(try_dataset(bytes)) << name;
}

// MUSTER_WRITE_CORPUS=1 data_test --gtest_filter='DatasetCorpus.*' writes the seeds anew after a change of the format.
TEST(DatasetCorpus, FilesAreTakenOrRefused) {
  const std::filesystem::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, bytes] : dataset_seeds()) std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  int files = 0, taken = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    ++files;
    taken += try_dataset(std::string(std::istreambuf_iterator<char>(in), {})) ? 1 : 0;
  }
  EXPECT_GE(files, 2);
  EXPECT_GE(taken, 2);
}

TEST(DatasetCorpus, SeedsAreTakenOrRefusedWhicheverBitIsFlipped) {
  for (const auto& [name, bytes] : dataset_seeds()) {
    for (size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      try_dataset(damaged);
    }
  }
}

}  // namespace
}  // namespace muster
