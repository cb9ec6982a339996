// The fuzzer's corpus as a unit test, and what a hostile peer does to a message.
#include "muster/rpc/fuzz_target.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace muster {
namespace {

using testing_support::try_frame;

std::string wire_bytes(Frame frame) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(encode(std::move(frame)).Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::vector<std::pair<std::string, std::string>> frame_seeds() {
  Frame tensors;
  tensors.envelope.set_header("header");
  tensors.envelope.set_request(7);
  tensors.tensors = {at::arange(6, at::kFloat).view({2, 3}), at::Tensor(), at::empty({0, 5}), at::ones({}, at::kBool)};
  return {{"empty", wire_bytes({})}, {"tensors", wire_bytes(std::move(tensors))}};
}

TEST(FrameCorpus, SeedsAreTaken) {
  for (const auto& [name, bytes] : frame_seeds()) EXPECT_TRUE(try_frame(bytes)) << name;
}

// MUSTER_WRITE_CORPUS=1 rpc_test --gtest_filter='FrameCorpus.*' writes the seeds anew after a change of the format.
TEST(FrameCorpus, FilesAreTakenOrRefused) {
  const std::filesystem::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, bytes] : frame_seeds()) std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  int files = 0, taken = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    ++files;
    taken += try_frame(std::string(std::istreambuf_iterator<char>(in), {})) ? 1 : 0;
  }
  EXPECT_GE(files, 2);
  EXPECT_GE(taken, 2);
}

TEST(FrameCorpus, SeedsSurviveWhicheverBitIsFlippedAndWhereverTheyAreCut) {
  for (const auto& [name, bytes] : frame_seeds()) {
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      try_frame(damaged);
    }
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(try_frame(std::string_view(bytes).substr(0, length))) << name << " of " << length << " bytes";
    }
  }
}

}  // namespace
}  // namespace muster
