// The fuzzer's corpus as a unit test, and what a wire or a disk does to a program: cuts it short, flips a bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "muster/base/log.h"
#include "muster/graph/fuzz_target.h"

namespace muster {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

// One of each kind of thing that a program can have.
std::vector<std::pair<std::string, Program>> seeds() {
  Builder kinds("kinds");
  ValueId x = kinds.argument(), mean = kinds.variable("mean"), var = kinds.variable("var", "/job:ps/task:1");
  kinds.instruction("aten::native_batch_norm",
                    {ref(x), {None{}}, {Undefined{}}, ref(mean), ref(var), {true}, number(0.1), number(1e-5)},
                    {1, 1, 1});
  kinds.op("aten::index.Tensor", {ref(x), {ArgumentList{{None{}}, ref(x)}}});
  kinds.op("aten::zeros", {integers({2, 3}), integer(6), integer(0), {HereDevice{}}, {false}}, "/device:GPU:0");
  kinds.op("aten::bernoulli_.float", {ref(x), number(0.5), {HereGenerator{}}});
  kinds.instruction("aten::split.Tensor", {ref(x), integer(1), integer(0)}, {2});

  Builder then("then"), otherwise("else");
  ValueId a = then.argument();
  Program yes = then.finish({a});
  Program no = otherwise.finish({otherwise.relu(otherwise.argument())});
  Builder cond("cond");
  ValueId p = cond.argument({DType::kBool, {}}), y = cond.argument();
  int32_t first = cond.body(yes), second = cond.body(no);
  cond.instruction(kCond.name, {ref(p), refs({y})}, {1}, "", {first, second});

  Builder gradient("gradient");
  for (int i = 0; i < 4; ++i) gradient.argument();
  Program backward = gradient.finish({gradient.add(2, 3), kNoValue});
  Builder loop("loop_gradient");
  ValueId trips = loop.argument({DType::kLong, {}}), s = loop.argument(), g = loop.argument(), i = loop.argument();
  int32_t body = loop.body(backward);
  loop.instruction(kLoopGradient.name, {ref(trips), refs({s}), refs({g}), refs({i})}, {1, 1}, "", {body});

  return {{"empty", Program{}},     {"step", small_program()}, {"loop", loop_program()},
          {"kinds", kinds.program}, {"cond", cond.program},    {"loop_gradient", loop.program}};
}

TEST(Corpus, SeedsPassTheChecker) {
  LogCapture quiet;
  for (const auto& [name, program] : seeds()) EXPECT_TRUE(try_program(serialize(program))) << name;
}

// MUSTER_WRITE_CORPUS=1 graph_test --gtest_filter='Corpus.*' writes the seeds anew after a change of the format.
TEST(Corpus, FilesPassOrAreRefused) {
  LogCapture quiet;
  const fs::path folder = MUSTER_FUZZ_CORPUS;
  if (std::getenv("MUSTER_WRITE_CORPUS")) {
    for (const auto& [name, program] : seeds()) std::ofstream(folder / name, std::ios::binary) << serialize(program);
  }
  int files = 0, passed = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    ++files;
    passed += try_program(bytes) ? 1 : 0;
  }
  EXPECT_GE(files, 6);
  EXPECT_GE(passed, 6) << "the seeds are of another format version; see MUSTER_WRITE_CORPUS above";
}

TEST(Corpus, EveryTruncationIsRefusedOrPasses) {
  LogCapture quiet;
  for (const auto& [name, program] : seeds()) {
    const std::string bytes = serialize(program);
    for (size_t size = 0; size < bytes.size(); ++size) try_program(std::string_view(bytes).substr(0, size));
  }
}

TEST(Corpus, EveryFlippedBitIsRefusedOrPasses) {
  LogCapture quiet;
  int refused = 0, passed = 0;
  for (const Program& program : {small_program(), loop_program()}) {
    std::string bytes = serialize(program);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const char before = bytes[bit / 8];
      bytes[bit / 8] = static_cast<char>(before ^ (1 << (bit % 8)));
      ++(try_program(bytes) ? passed : refused);
      bytes[bit / 8] = before;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(passed, 0) << "a flipped bit in a name or a constant is still a program";
}

}  // namespace
}  // namespace muster
