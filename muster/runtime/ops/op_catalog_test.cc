#include "muster/runtime/ops/op_catalog.h"

#include <gtest/gtest.h>

#include "muster/base/status.h"

namespace muster {
namespace {

TEST(OpCatalog, AllowsOpsByNameWhateverTheirOverload) {
  OpCatalog catalog;

  EXPECT_TRUE(catalog.allowed("aten::add.Tensor"));
  EXPECT_TRUE(catalog.allowed("aten::add"));
  EXPECT_FALSE(catalog.allowed("aten::addition"));
}

TEST(OpCatalog, AllowsNoOpThatTouchesFilesOrTrustsPointers) {
  OpCatalog catalog;

  for (const char* op : {"aten::from_file", "aten::set_.source_Storage", "aten::save", "aten::_cudnn_rnn",
                         "aten::_sparse_coo_tensor_unsafe", "aten::record_stream", "prim::device"}) {
    EXPECT_FALSE(catalog.allowed(op)) << op;
  }
}

TEST(OpCatalog, TakesOpsAndNamespacesThatTheOwnerTrusts) {
  OpCatalog catalog({"mylib::", "aten::_cudnn_rnn"});

  EXPECT_TRUE(catalog.allowed("mylib::anything.out"));
  EXPECT_TRUE(catalog.allowed("aten::_cudnn_rnn"));
  EXPECT_FALSE(catalog.allowed("otherlib::anything"));
}

TEST(OpCatalog, SaysThatAnOpDoesNotExist) {
  OpCatalog catalog({"mylib::"});

  try {
    catalog.find({"mylib::missing", "mylib::missing() -> ()"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(error.status().message(), "op mylib::missing does not exist in this libtorch");
  }
}

TEST(OpCatalog, LetsAMasterPassOnOpsThatItDoesNotHave) {
  Program program{.ops = {{"mylib::missing", "mylib::missing() -> ()"}}};

  EXPECT_NO_THROW(verify_schemas(program));
  program.ops.push_back({"aten::relu", "aten::relu() -> ()"});
  EXPECT_THROW(verify_schemas(program), Error);
  program.ops.back() = {"aten::no_such_op", "aten::no_such_op() -> ()"};
  EXPECT_THROW(verify_schemas(program), Error);
}

TEST(OpCatalog, PrintsSchemasAsLibtorchDoes) {
  EXPECT_EQ(schema_of("aten::relu"), "aten::relu(Tensor self) -> Tensor");
  EXPECT_EQ(schema_of("aten::no_such_op"), std::nullopt);
}

TEST(OpCatalog, KnowsWhichOpsThereAreKernelsOf) {
  EXPECT_TRUE(has_kernel("aten::mm", at::kCPU));
  EXPECT_TRUE(has_kernel("aten::linear", at::kCPU));  // made of others
  EXPECT_FALSE(has_kernel("aten::_cudnn_rnn", at::kCPU));
  EXPECT_FALSE(has_kernel("aten::histogram.bin_ct", at::kCUDA));
  EXPECT_TRUE(has_kernel("muster::copy", at::kCUDA));
}

}  // namespace
}  // namespace muster
