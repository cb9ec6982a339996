// The fuzzer's corpus as a unit test, and what a disk or a stranger does to an exported model.
#include "muster/fit/fuzz_target.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <random>

#include "muster/fit/exported/export_model.h"
#include "muster/graph/serialize.h"
#include "muster/io/safetensors.h"

namespace muster::model_fuzz_test {
namespace {

using namespace testing_support;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::pair<std::string, std::string>> seeds() {
  const ScopedDirectory scratch;
  const std::string path = scratch.path() + "/model.safetensors";
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::ReLU(), torch::nn::Linear(2, 1));
  export_model(net, path, {torch::ones({4, 3})}, {.name = "small"});
  const std::string text = SafetensorsFile(path).metadata().at(kExportedModelKey);
  const ExportedModel model = exported_model_from_text(text, "a seed");
  const std::string file = contents(path);
  export_model(torch::nn::Embedding(4, 2), path, {torch::tensor({1, 2, 3})}, {.name = "words"});
  return {{"file", "f" + file},
          {"words", "f" + contents(path)},  // command_test.py runs it
          {"text", "t" + text},
          {"program", "p" + text + '\0' + serialize(model.program_for(2))}};
}

TEST(ModelCorpus, SeedsAreTaken) {
  for (const auto& [name, bytes] : seeds()) EXPECT_TRUE(try_model(bytes)) << name;
}

// MUSTER_WRITE_CORPUS=1 fit_test --gtest_filter='ModelCorpus.*' writes the seeds anew after a change of the format.
TEST(ModelCorpus, FilesAreTakenOrRefused) {
  const std::filesystem::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, bytes] : seeds()) std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  int taken = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) taken += try_model(contents(file)) ? 1 : 0;
  EXPECT_GE(taken, 4) << "the seeds are of another format version; see MUSTER_WRITE_CORPUS above";
}

// MUSTER_FUZZ_ROUNDS is how many there are of each kind.
TEST(ModelCorpus, WhateverIsChangedIsRefusedOrTaken) {
  const char* const wanted = std::getenv("MUSTER_FUZZ_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 300;
  std::mt19937 random(7);
  int refused = 0;
  for (const auto& [name, seed] : seeds()) {
    for (int round = 0; round < rounds; ++round) {
      std::string bytes = seed;
      for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
        const size_t at = 1 + random() % (bytes.size() - 1);
        switch (random() % 4) {
          case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8))); break;
          case 1: bytes[at] = static_cast<char>(random()); break;
          case 2: bytes.erase(at, random() % 9); break;
          default: bytes.insert(at, bytes.substr(1 + random() % (bytes.size() - 1), random() % 17)); break;
        }
      }
      refused += try_model(bytes) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace muster::model_fuzz_test
