#include "muster/data/files/numpy_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "muster/base/status.h"
#include "muster/data/files/numpy_file.h"

namespace muster::numpy_writer_test {
namespace {

class NumpyWriter : public ::testing::Test {
 protected:
  ~NumpyWriter() override { std::filesystem::remove(path_); }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("muster_numpy_writer_" + std::to_string(getpid()) + ".npy")).string();
};

TEST_F(NumpyWriter, WritesWhatTheReaderReads) {
  const at::Tensor whole = at::arange(24).reshape({2, 3, 4});
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                    at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    for (const at::Tensor& each :
         {whole, whole.transpose(0, 2), whole.flatten(), whole.select(0, 1).select(0, 1)[2], whole.slice(0, 0, 0)}) {
      const at::Tensor tensor = each.to(type);

      write_npy(path_, tensor);
      const at::Tensor read = read_npy(path_);

      EXPECT_EQ(read.scalar_type(), type);
      EXPECT_TRUE(read.equal(tensor)) << type << tensor.sizes();
    }
  }
}

TEST_F(NumpyWriter, WritesBFloat16AsFloat32) {
  write_npy(path_, at::ones({3}, at::kBFloat16));

  EXPECT_TRUE(read_npy(path_).equal(at::ones({3})));
}

TEST_F(NumpyWriter, NamesTheFileThatItCannotWrite) { EXPECT_THROW(write_npy("/nowhere/x.npy", at::ones({3})), Error); }

}  // namespace
}  // namespace muster::numpy_writer_test
