// The fuzzer's corpus as a unit test, and what a disk does to a checkpoint: cuts it short, flips a bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "muster/io/fuzz_target.h"
#include "muster/io/test_checkpoints.h"

namespace muster {
namespace {

using namespace testing_support;

// A checkpoint of these slices, which are all bytes of value 7, in one file.
std::string fuzz_checkpoint(const std::vector<ShardEntry>& entries) {
  const ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  std::vector<std::vector<std::byte>> values;
  std::vector<Slice> slices;
  for (const ShardEntry& entry : entries) {
    // Whole numbers may be those of rows.
    values.emplace_back(static_cast<size_t>(entry.spec.bytes()),
                        entry.spec.dtype == DType::kLong ? std::byte{0} : std::byte{7});
    slices.push_back({entry.variable, entry.spec, entry.full_sizes, entry.row_offset, values.back()});
  }
  const std::string temporary = directory.begin(3);
  CheckpointIndex index{.step = 3, .metadata = {{"by", "test"}}};
  index.entries = write_shard(temporary, "a", slices);
  const std::string path = directory.commit(temporary, index);
  return "c" + read_file(path + "/index.json") + '\0' + read_file(path + "/" + kFuzzShard);
}

// One of each kind of thing that a checkpoint can have.
std::vector<std::pair<std::string, std::string>> seeds() {
  const std::string parts = fuzz_checkpoint({{"w", {DType::kInt, {2, 2}}, {5, 2}, 0, "", 0},
                                             {"w", {DType::kInt, {3, 2}}, {5, 2}, 2, "", 0},
                                             {"none", {DType::kFloat, {0, 3}}, {0, 3}, 0, "", 0}});
  const std::string types = fuzz_checkpoint({{"scalar", {DType::kDouble, {}}, {}, 0, "", 0},
                                             {"flags", {DType::kBool, {3}}, {3}, 0, "", 0},
                                             {"half", {DType::kBFloat16, {1, 1, 2}}, {1, 1, 2}, 0, "", 0},
                                             {"t#rule@0", {DType::kLong, {7}}, {7}, 0, "", 0}});
  const std::string differences = fuzz_checkpoint({{"w", {DType::kInt, {2, 2}}, {2, 2}, 0, "", 0},
                                                   {"w#rows@0+1", {DType::kInt, {1, 2}}, {1, 2}, 0, "", 0},
                                                   {"w#ids@0+1", {DType::kLong, {1}}, {1}, 0, "", 0},
                                                   {"w#rows@0+2", {DType::kInt, {0, 2}}, {0, 2}, 0, "", 0},
                                                   {"w#ids@0+2", {DType::kLong, {0}}, {0}, 0, "", 0}});
  const size_t end = parts.find('\0');
  return {{"parts", parts},
          {"types", types},
          {"differences", differences},
          {"index", "i" + parts.substr(1, end - 1)},
          {"file", "s" + parts.substr(end + 1)}};
}

TEST(CheckpointCorpus, SeedsAreTaken) {
  for (const auto& [name, bytes] : seeds()) EXPECT_TRUE(try_checkpoint(bytes)) << name;
}

// MUSTER_WRITE_CORPUS=1 io_test --gtest_filter='CheckpointCorpus.*' writes the seeds anew after a change of the format.
TEST(CheckpointCorpus, FilesAreTakenOrRefused) {
  const std::filesystem::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, bytes] : seeds()) write_file(folder / name, bytes);
  }
  int files = 0, taken = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    ++files;
    taken += try_checkpoint(read_file(file.path())) ? 1 : 0;
  }
  EXPECT_GE(files, 4);
  EXPECT_GE(taken, 4) << "the seeds are of another format version; see MUSTER_WRITE_CORPUS above";
}

TEST(CheckpointCorpus, EveryTruncationIsRefusedOrTaken) {
  for (const auto& [name, bytes] : seeds()) {
    for (size_t size = 0; size < bytes.size(); ++size) try_checkpoint(std::string_view(bytes).substr(0, size));
  }
}

TEST(CheckpointCorpus, AFlippedBitInAnyByteIsRefusedOrTaken) {
  int refused = 0, taken = 0;
  for (auto [name, bytes] : seeds()) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      const char before = bytes[at];
      bytes[at] = static_cast<char>(before ^ (1 << (at % 8)));
      ++(try_checkpoint(bytes) ? taken : refused);
      bytes[at] = before;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(taken, 0) << "a flipped bit in a name is still a checkpoint";
}

TEST(CheckpointCorpus, NumbersThatAreTooLargeAreRefused) {
  const std::string good = fuzz_checkpoint({{"w", {DType::kByte, {2, 2}}, {2, 2}, 0, "", 0}});
  for (const char* number : {"-1", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e300", "2.5",
                             "4611686018427387904", "null", "[]", "{}"}) {
    for (const std::string field : {"sizes\":[", "full_sizes\":[", "row_offset\":", "step\":", "crc32c\":",
                                    "shard-a.safetensors\":", "shape\":[", "data_offsets\":["}) {
      std::string bytes = good;
      for (size_t at = bytes.find(field); at != std::string::npos; at = bytes.find(field, at + 1)) {
        const size_t begin = at + field.size();
        bytes.replace(begin, bytes.find_first_of(",]}", begin) - begin, number);
      }
      try_checkpoint(bytes);
    }
  }
}

}  // namespace
}  // namespace muster
