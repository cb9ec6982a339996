// The fuzzer's corpus of programs as a unit test, to their runs.
#include "muster/runtime/fuzz_target.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "muster/graph/test_program.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing_support::Builder;
using testing_support::integers;
using testing_support::ref;
using testing_support::run_program;

TEST(RunCorpus, FilesRunOrAreRefused) {
  int files = 0, registered = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(MUSTER_FUZZ_CORPUS)) {
    std::ifstream in(file.path(), std::ios::binary);
    ++files;
    registered += run_program(std::string((std::istreambuf_iterator<char>(in)), {})) ? 1 : 0;
  }
  EXPECT_GE(files, 6);
  EXPECT_GE(registered, 3);
}

TEST(RunCorpus, ProgramsRunOrAreRefusedWhicheverBitIsFlipped) {
  Builder views("views");
  ValueId x = views.argument(), w = views.variable("w");
  ValueId flat = views.op("aten::reshape", {ref(views.add(x, w)), integers({4})});
  views.add_(w, views.op("aten::t", {ref(x)}));
  int registered = 0;
  for (const Program& program : {testing_support::loop_program(), views.finish({flat, w})}) {
    std::string bytes = serialize(program);
    for (size_t bit = 0; bit < bytes.size() * 8; bit += 5) {
      const char before = bytes[bit / 8];
      bytes[bit / 8] = static_cast<char>(before ^ (1 << (bit % 8)));
      registered += run_program(bytes) ? 1 : 0;
      bytes[bit / 8] = before;
    }
  }
  EXPECT_GT(registered, 0) << "a flipped bit in a name is still a program";
}

}  // namespace
}  // namespace muster
