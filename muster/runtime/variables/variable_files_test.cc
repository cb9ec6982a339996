// Requests and checkpoints that lie. Both may come from a stranger: nothing may crash, read or write what is not
// theirs.
#include "muster/runtime/variables/variable_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/variables/spare_memory.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

using testing_support::caught;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int64_t kRows = 6, kWidth = 2;

std::vector<int64_t> rule(int64_t kind, double a, double b, DType type, std::vector<int64_t> sizes) {
  std::vector<int64_t> numbers{kind, std::bit_cast<int64_t>(a), std::bit_cast<int64_t>(b), 5,
                               static_cast<int64_t>(type)};
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
  return numbers;
}
std::vector<int64_t> good_rule() { return rule(RowRule::kConstant, 7, 0, DType::kFloat, {kRows, kWidth}); }

class VariableFiles : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

  ~VariableFiles() override { std::filesystem::remove_all(directory_.path()); }

  // A checkpoint of these tensors, whole.
  std::string checkpoint(const Tensors& tensors) {
    std::vector<Slice> slices;
    for (const auto& [name, tensor] : tensors) {
      const TensorSpec spec = spec_of(tensor);
      slices.push_back(
          {name, spec, spec.sizes, 0, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
    }
    const std::string temporary = directory_.begin(++step_);
    CheckpointIndex index{.step = step_};
    index.entries = write_shard(temporary, "ps", slices);
    return directory_.commit(temporary, index);
  }
  // One of a table by rows on demand: rule, and ids and rows if there are any.
  std::string table(const std::vector<int64_t>& rule, const at::Tensor& ids = {}, const at::Tensor& rows = {}) {
    Tensors tensors{{"t#rule@0", torch::tensor(rule)}};
    if (ids.defined()) tensors.emplace_back("t#ids@0", ids);
    if (rows.defined()) tensors.emplace_back("t#rows@0", rows);
    return checkpoint(tensors);
  }

  StoredVariable stored(const std::string& name, std::vector<int64_t> sizes) const {
    return {.name = name,
            .spec = {DType::kFloat, sizes},
            .device = devices_.names()[0],
            .whole = name,
            .whole_sizes = sizes,
            .first_row = 0};
  }
  StoredVariable whole_table() const { return stored("t", {kRows, kWidth}); }

  // The same for both stages: what would fail is found before anything is changed.
  Status restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables) {
    const Status looked =
        caught([&] { restore_variables(store_, devices_, checkpoint, variables, RestoreStage::kCheck); });
    const size_t before = store_.all().size();
    const Status applied =
        caught([&] { restore_variables(store_, devices_, checkpoint, variables, RestoreStage::kApply); });
    EXPECT_EQ(looked, applied);
    if (!looked.ok()) {
      EXPECT_EQ(store_.all().size(), before);
    }
    return looked;
  }
  Status save(const std::vector<StoredVariable>& variables) {
    const std::string temporary = directory_.begin(++step_);
    const Status status = caught([&] { save_variables(store_, "ps", temporary, variables); });
    directory_.abandon(temporary);
    return status;
  }

  CheckpointDirectory directory_{testing::TempDir() + "variable-files-" + std::to_string(random_id())};
  int64_t step_ = 0;
  LocalDevices devices_{{.gpus = false}};
  VariableStore store_;
};

TEST_F(VariableFiles, BringBackValuesAndRowsOnDemand) {
  const at::Tensor ids = torch::tensor({int64_t{1}, int64_t{5}}), rows = torch::arange(4.0F).view({2, kWidth});
  const std::string path = checkpoint({{"w", torch::arange(8.0F).view({4, 2})},
                                       {"t#rule@0", torch::tensor(good_rule())},
                                       {"t#ids@0", ids},
                                       {"t#rows@0", rows}});
  StoredVariable half = stored("w", {4, 2}), end = whole_table();
  half.name = "half";
  half.spec.sizes[0] = half.first_row = 2;
  end.name = "end";
  end.spec.sizes[0] = end.first_row = 3;

  EXPECT_TRUE(restore(path, {half, whole_table(), end}).ok());

  EXPECT_TRUE(torch::equal(store_.find("half")->read(), torch::arange(8.0F).view({4, 2}).slice(0, 2)));
  at::Tensor expected = torch::full({kRows, kWidth}, 7.0F);
  expected.index_copy_(0, ids, rows);
  EXPECT_TRUE(torch::equal(store_.find("t")->read(), expected));
  EXPECT_TRUE(torch::equal(store_.find("end")->read(), expected.slice(0, 3)));
}

TEST_F(VariableFiles, ChangeNothingWhenTheyAreOnlyChecked) {
  auto cell = store_.declare("w", {DType::kFloat, {2}}, at::kCPU);
  cell->assign(torch::zeros({2}));
  const std::string path = checkpoint({{"w", torch::ones({2})}, {"v", torch::ones({2})}});

  restore_variables(store_, devices_, path, {stored("w", {2}), stored("v", {2})}, RestoreStage::kCheck);

  EXPECT_TRUE(torch::equal(cell->read(), torch::zeros({2})));
  EXPECT_EQ(store_.find("v"), nullptr);
}

// ---- Large ones
class LargeVariableFiles : public VariableFiles {
 protected:
  static constexpr int64_t kElements = (4 << 20) / 4;

  LargeVariableFiles() {
    SpareMemory::instance().let_go();
    for (const char* name : {"v", "w"}) {
      store_.declare(name, {DType::kFloat, {kElements}}, at::kCPU)->assign(torch::ones({kElements}));
    }
  }
  void check_and_apply(const std::string& path) {
    StagedValues staged;
    for (const RestoreStage stage : {RestoreStage::kCheck, RestoreStage::kApply}) {
      restore_variables(store_, devices_, path, {stored("v", {kElements}), stored("w", {kElements})}, stage, &staged);
    }
  }

  const at::Tensor values_ = torch::arange(kElements).to(torch::kFloat);
};

TEST_F(LargeVariableFiles, ComeIntoMemoryOfThoseThatWereReplacedBefore) {
  const std::string path = checkpoint({{"v", values_}, {"w", values_ + 1}});
  std::set<const void*> memory;
  for (int times = 0; times < 6; ++times) {
    for (const char* name : {"v", "w"}) store_.find(name)->assign(torch::zeros({kElements}));
    check_and_apply(path);
    EXPECT_TRUE(torch::equal(store_.find("v")->read(), values_));
    EXPECT_TRUE(torch::equal(store_.find("w")->read(), values_ + 1));
    for (const char* name : {"v", "w"}) memory.insert(store_.find(name)->read().const_data_ptr());
  }

  EXPECT_LE(memory.size(), 4U);
}

TEST_F(LargeVariableFiles, LeaveEverythingAsItWasWhenOneIsDamaged) {
  const std::string path = checkpoint({{"v", values_}, {"w", values_}});
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }

  const Status status = caught([&] { check_and_apply(path); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  for (const char* name : {"v", "w"}) {
    EXPECT_TRUE(torch::equal(store_.find(name)->read(), torch::ones({kElements}))) << name;
  }
}

// ---- Requests
TEST_F(VariableFiles, RefuseToRestoreWhatIsNoPartOfItsWhole) {
  const std::string path = checkpoint({{"w", torch::ones({4, 2})}});
  const auto refused = [&](const std::function<void(StoredVariable&)>& change) {
    StoredVariable variable = stored("w", {4, 2});
    change(variable);
    const Status status = restore(path, {variable});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return status.message();
  };

  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = {4, 1}; }), HasSubstr("is not inside float32[4, 2]"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = {4}; }), HasSubstr("is not inside"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = {}; }), HasSubstr("is not inside"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = {5, 2}; }), HasSubstr("is not inside"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = {-1, 2}; }), HasSubstr("no size in bytes"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = v.whole_sizes = {INT64_MAX, INT64_MAX}; }),
              HasSubstr("no size in bytes"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = v.whole_sizes = {INT64_MAX, INT64_MAX, 0}; }),
              HasSubstr("no size in bytes"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.whole_sizes = {}; }), HasSubstr("is not inside"));
  for (int64_t row : {int64_t{-1}, int64_t{1}, INT64_MIN, INT64_MAX}) {
    EXPECT_THAT(refused([&](StoredVariable& v) { v.first_row = row; }), HasSubstr("is not inside"));
  }
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.dtype = DType::kDouble; }), HasSubstr("has it as float32[4, 2]"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.sizes = v.whole_sizes = {5, 2}; }), HasSubstr("has it as"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.spec.dtype = DType::kComplexDouble; }), HasSubstr("cannot be stored"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.device = "/device:CPU:77"; }), HasSubstr("CPU:77"));
  EXPECT_THAT(refused([](StoredVariable& v) { v.whole = "w#rule@0"; }), HasSubstr("such a name for rows"));
  EXPECT_EQ(restore(path, {stored("w", {4, 2}), stored("w", {4, 2})}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(path, {stored("v", {4, 2})}).code(), StatusCode::kNotFound);
}

TEST_F(VariableFiles, RefuseAVariableThatIsThereWithAnotherShape) {
  const std::string path = checkpoint({{"a", torch::ones({2})}, {"w", torch::ones({4})}});
  store_.declare("w", {DType::kFloat, {2}}, at::kCPU)->assign(torch::zeros({2}));
  StoredVariable half = stored("w", {4});

  const Status status = restore(path, {stored("a", {2}), half});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("\"w\" is float32[2]"), HasSubstr("cannot be restored as float32[4]")));
  EXPECT_EQ(store_.find("a"), nullptr) << "the first one was not changed, either";
}

TEST_F(VariableFiles, RefuseToSaveWhatIsNotAsTheRequestSays) {
  store_.declare("w", {DType::kFloat, {4, 2}}, at::kCPU)->assign(torch::ones({4, 2}));
  auto on_demand = store_.declare("t", {DType::kFloat, {kRows, kWidth}}, at::kCPU);
  at::Tensor value = RowTable::zeros(on_demand->spec());
  RowTable::begin(value, {.a = 7});
  RowTable::of(value)->write(1);
  on_demand->replace(value);
  for (const char* name : {"w", "t"}) {
    const StoredVariable good = stored(name, store_.find(name)->spec().sizes);
    const auto code = [&](const std::function<void(StoredVariable&)>& change) {
      StoredVariable variable = good;
      change(variable);
      return save({variable}).code();
    };

    EXPECT_TRUE(save({good}).ok());
    EXPECT_EQ(code([](StoredVariable& v) { v.spec.sizes = v.whole_sizes = {1, 2}; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.spec.dtype = DType::kByte; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.first_row = INT64_MIN; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.first_row = INT64_MAX; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.whole_sizes = {}; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.whole = "a#ids@3"; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](StoredVariable& v) { v.name = "none"; }), StatusCode::kNotFound);
  }
}

// ---- Files
TEST_F(VariableFiles, RefuseARuleThatIsNone) {
  const auto refused = [&](const std::vector<int64_t>& rule) { return restore(table(rule), {whole_table()}).code(); };
  std::vector<int64_t> numbers = good_rule();

  EXPECT_EQ(refused({}), StatusCode::kDataLoss);
  EXPECT_EQ(refused({0}), StatusCode::kDataLoss);
  EXPECT_EQ(refused(std::vector<int64_t>(1000, 1)), StatusCode::kDataLoss);
  EXPECT_EQ(refused(rule(-1, 7, 0, DType::kFloat, {kRows, kWidth})), StatusCode::kDataLoss);
  EXPECT_EQ(refused(rule(3, 7, 0, DType::kFloat, {kRows, kWidth})), StatusCode::kDataLoss);
  EXPECT_EQ(refused(rule(INT64_MIN, 7, 0, DType::kFloat, {kRows, kWidth})), StatusCode::kDataLoss);
  numbers[4] = INT64_MAX;
  EXPECT_EQ(refused(numbers), StatusCode::kDataLoss) << "a type that is none";
  EXPECT_EQ(refused(rule(RowRule::kConstant, 7, 0, DType::kBool, {kRows, kWidth})), StatusCode::kDataLoss);
  EXPECT_EQ(refused(rule(RowRule::kConstant, 7, 0, DType::kFloat, {})), StatusCode::kDataLoss);
  EXPECT_EQ(refused(rule(RowRule::kConstant, 7, 0, DType::kFloat, {kRows, kWidth + 1})), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(rule(RowRule::kConstant, 7, 0, DType::kFloat, {INT64_MAX, INT64_MAX})),
            StatusCode::kInvalidArgument);
  for (const at::Tensor& odd : {torch::ones({7}), torch::ones({1, 7}, torch::kLong), torch::ones({}, torch::kLong)}) {
    EXPECT_EQ(restore(checkpoint({{"t#rule@0", odd}}), {whole_table()}).code(), StatusCode::kDataLoss);
  }
}

TEST_F(VariableFiles, RefuseNumbersThatAreNoElements) {
  StoredVariable integers = whole_table();
  integers.spec.dtype = DType::kInt;
  const auto code = [&](int64_t kind, double a) {
    return restore(table(rule(kind, a, 1, DType::kInt, {kRows, kWidth})), {integers}).code();
  };

  EXPECT_EQ(code(RowRule::kConstant, 3), StatusCode::kOk);
  EXPECT_EQ(code(RowRule::kConstant, 1e300), StatusCode::kDataLoss);
  EXPECT_EQ(code(RowRule::kConstant, 2147483648.0), StatusCode::kDataLoss);
  EXPECT_EQ(code(RowRule::kConstant, -2147483649.0), StatusCode::kDataLoss);
  EXPECT_EQ(code(RowRule::kConstant, std::numeric_limits<double>::quiet_NaN()), StatusCode::kDataLoss);
  EXPECT_EQ(code(RowRule::kNormal, 3), StatusCode::kDataLoss);
}

TEST_F(VariableFiles, RefuseRowsThatDoNotFitTheTable) {
  const auto numbers = [](std::vector<int64_t> ids) { return torch::tensor(ids, torch::kLong); };
  const auto refused = [&](const at::Tensor& ids, const at::Tensor& rows) {
    const Status status = restore(table(good_rule(), ids, rows), {whole_table()});
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    return status.message();
  };

  EXPECT_THAT(refused(numbers({1, 2}), torch::ones({2, 1000})), HasSubstr("expected float32[2, 2]"));
  EXPECT_THAT(refused(numbers({1, 2}), torch::ones({2, 1})), HasSubstr("expected float32[2, 2]"));
  EXPECT_THAT(refused(numbers({1, 2, 3}), torch::ones({1, kWidth})), HasSubstr("expected float32[3, 2]"));
  EXPECT_THAT(refused(numbers({1, 2}), torch::ones({0, kWidth})), HasSubstr("expected float32[2, 2]"));
  EXPECT_THAT(refused(numbers({1, 2}), torch::ones({4})), HasSubstr("expected float32[2, 2]"));
  EXPECT_THAT(refused(numbers({1, 2}), torch::ones({2, kWidth}, torch::kDouble)), HasSubstr("as float64"));
  EXPECT_THAT(refused(numbers({}), torch::ones({0, kWidth})), HasSubstr("int64[0]"));
  EXPECT_THAT(refused(torch::ones({}, torch::kLong), torch::ones({kWidth})), HasSubstr("int64[]"));
  EXPECT_THAT(refused(torch::ones({2}, torch::kInt), torch::ones({2, kWidth})), HasSubstr("int32[2]"));
  EXPECT_THAT(refused(torch::ones({2, 1}, torch::kLong), torch::ones({2, kWidth})), HasSubstr("int64[2, 1]"));
  EXPECT_THAT(refused(numbers({1}), {}), HasSubstr("lacks \"t#rows@0\""));
  EXPECT_THAT(refused({}, torch::ones({1, kWidth})), HasSubstr("lacks \"t#ids@0\""));
  for (int64_t id : {int64_t{-1}, kRows, INT64_MIN, INT64_MAX}) {
    EXPECT_THAT(refused(numbers({id}), torch::ones({1, kWidth})), HasSubstr("has row"));
  }
  EXPECT_THAT(refused(numbers({2, 1}), torch::ones({2, kWidth})), HasSubstr("has row 1 after row 2"));
  EXPECT_THAT(refused(numbers({2, 2}), torch::ones({2, kWidth})), HasSubstr("has row 2 after row 2"));
}

TEST_F(VariableFiles, RefuseTwoRulesForOneTable) {
  std::vector<int64_t> other = good_rule();
  ++other[3];

  EXPECT_EQ(restore(checkpoint({{"t#rule@0", torch::tensor(good_rule())}, {"t#rule@3", torch::tensor(other)}}),
                    {whole_table()})
                .code(),
            StatusCode::kDataLoss);
}

TEST_F(VariableFiles, TakeNoNameForAPartThatIsNone) {
  for (const char* name : {"t#rule@", "t#rule@x", "t#rule@-1", "t#rule@007", "t#rule@99999999999999999999", "t#rule",
                           "t#rules@0", "#rule@0", "@", "#", "t#rule@0@0", "t#rule@ 1"}) {
    EXPECT_EQ(restore(checkpoint({{name, torch::tensor(good_rule())}}), {whole_table()}).code(), StatusCode::kNotFound)
        << name;
  }
}

TEST_F(VariableFiles, RefuseRowsOnDemandForWhatHasNoRows) {
  EXPECT_EQ(restore(table(rule(RowRule::kConstant, 7, 0, DType::kFloat, {})), {stored("t", {})}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(VariableFiles, RestoreATableWithoutRowsAndOneWithoutColumns) {
  EXPECT_TRUE(restore(table(rule(RowRule::kConstant, 7, 0, DType::kFloat, {0, 2})), {stored("t", {0, 2})}).ok());
  store_.erase("t");
  EXPECT_TRUE(restore(table(rule(RowRule::kConstant, 7, 0, DType::kFloat, {3, 0}), torch::tensor({int64_t{1}}),
                            torch::ones({1, 0})),
                      {stored("t", {3, 0})})
                  .ok());
}

TEST_F(VariableFiles, NameTheVariablesOfACheckpoint) {
  const std::string path = checkpoint({{"w", torch::ones({2})},
                                       {"t#rule@0", torch::tensor(good_rule())},
                                       {"t#ids@0", torch::tensor({int64_t{1}})},
                                       {"t#rows@0", torch::ones({1, kWidth})},
                                       {"t#rule@x", torch::ones({1})}});

  EXPECT_THAT(variables_in(read_checkpoint_index(path)), ElementsAre("t", "t#rule@x", "w"));
}

// ---- Directories
class PathBelow : public testing::Test {
 protected:
  PathBelow() {
    fs::create_directories(root_ + "/jobs/a");
    fs::create_directories(root_ + "-other");
    fs::create_symlink("/etc", root_ + "/jobs/link");
    fs::create_symlink(root_ + "/jobs", root_ + "-other/jobs");
  }
  ~PathBelow() override {
    fs::remove_all(root_);
    fs::remove_all(root_ + "-other");
  }
  StatusCode code(const std::string& path) {
    return caught([&] { path_below({root_}, path); }).code();
  }

  const std::string root_ =
      std::filesystem::weakly_canonical(testing::TempDir()) / ("below-" + std::to_string(random_id()));
};

TEST_F(PathBelow, IsGivenWithoutLinks) {
  EXPECT_EQ(path_below({root_}, root_), root_);
  EXPECT_EQ(path_below({root_ + "/"}, root_ + "/jobs/a/"), root_ + "/jobs/a");
  EXPECT_EQ(path_below({"/nowhere", root_}, root_ + "/not/there"), root_ + "/not/there");
  EXPECT_EQ(path_below({root_}, root_ + "-other/jobs/a"), root_ + "/jobs/a") << "a link that leads inside";
  EXPECT_EQ(path_below({"/"}, root_), root_);
}

TEST_F(PathBelow, IsRefusedElsewhere) {
  for (const std::string& path :
       {std::string(), std::string("/"), std::string("/etc"), std::string("relative"), root_ + "-other", root_ + "/..",
        root_ + "/jobs/../../x", root_ + "/jobs/..", root_ + "/none/../../etc", root_ + "/jobs/link",
        root_ + "/jobs/link/ssl", root_ + std::string("\0/etc", 5)}) {
    EXPECT_EQ(code(path), StatusCode::kPermissionDenied) << path;
  }
}

TEST_F(PathBelow, IsRefusedWithTheWayToAllowIt) {
  EXPECT_THAT(caught([&] { path_below({}, root_); }).message(),
              AllOf(HasSubstr(root_), HasSubstr("--storage of muster server and of muster run"),
                    HasSubstr("LocalWorkerOptions::storage")));
  EXPECT_THAT(caught([&] { path_below({"/a", "/b"}, root_); }).message(), HasSubstr("only what is below /a, /b"));
}

}  // namespace
}  // namespace muster
