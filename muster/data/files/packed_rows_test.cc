#include "muster/data/files/packed_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "muster/io/test_files.h"

namespace muster::packed_rows_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::caught;
using Type = PackedField::Type;

template <class Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}
std::string with_length(const std::string& bytes) { return bytes_of(PackedRows::Length(bytes.size())) + bytes; }

Columns parsed(const PackedRows& layout, const std::vector<std::string>& rows) {
  return layout.parse(std::vector<std::string_view>(rows.begin(), rows.end()));
}

TEST(PackedRows, HaveFieldsOfOneLengthBeforeTheOthers) {
  const PackedRows layout({{.name = "word", .type = Type::kString},
                           {.name = "x", .type = Type::kInt16},
                           {.name = "tags", .type = Type::kInt32, .varies = true},
                           {.name = "pair", .type = Type::kFloat, .sizes = {2}},
                           {.name = "yes", .type = Type::kBool}});
  std::vector<std::string> rows;
  for (int i = 0; i < 3; ++i) {
    rows.push_back(bytes_of(int16_t(i)) + bytes_of(i + 0.5F) + bytes_of(i + 0.25F) + bytes_of(char(i)) +
                   with_length(std::string(size_t(i), 'a')) + with_length(bytes_of(7 * i) + bytes_of(8 * i)));
  }

  const Columns columns = parsed(layout, rows);

  EXPECT_THAT(layout.names(), ElementsAre("word", "x", "tags", "pair", "yes"));
  ASSERT_EQ(columns.size(), 5u);
  EXPECT_EQ(columns[0].strings()[0], "");
  EXPECT_EQ(columns[0].strings()[2], "aa");
  EXPECT_EQ(columns[1].to_string(), "int16[3]");
  EXPECT_EQ(columns[1].tensor().const_data_ptr<int16_t>()[2], 2);
  EXPECT_EQ(columns[2].to_string(), "int32[3, 2]");
  EXPECT_EQ(columns[2].tensor().const_data_ptr<int32_t>()[5], 16);
  EXPECT_EQ(columns[3].to_string(), "float32[3, 2]");
  EXPECT_EQ(columns[3].tensor().const_data_ptr<float>()[3], 1.25F);
  EXPECT_EQ(columns[4].tensor().const_data_ptr<bool>()[0], false);
  EXPECT_EQ(bytes_of(columns[4].tensor().const_data_ptr<bool>()[2]), std::string(1, '\1')) << "no bool is 2";
}

TEST(PackedRows, HaveNoMoreDimensionsThanATensorHas) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  auto message = [](std::vector<int64_t> sizes) {
    return caught([&] { PackedRows({{.name = "x", .type = Type::kFloat, .sizes = std::move(sizes)}}); }).message();
  };

  EXPECT_THAT(message(std::vector<int64_t>(1'000'000, 1)), testing::AllOf(HasSubstr("\"x\""), HasSubstr("at most 64")));
  EXPECT_THAT(message({0, kMost, 4}), HasSubstr("bytes")) << "libtorch multiplies them for the strides";
  EXPECT_NO_THROW(PackedRows({{.name = "x", .type = Type::kFloat, .sizes = {0, 3}}}));
}

TEST(PackedRows, SayWhatTheValueIsThatANullCannotStandFor) {
  auto message = [](Type type, std::variant<double, int64_t, std::string> otherwise) {
    return caught([&] { PackedRows({{.name = "x", .type = type, .otherwise = std::move(otherwise)}}); }).message();
  };

  EXPECT_THAT(message(Type::kInt8, int64_t{300}), HasSubstr("\"x\": its value otherwise is 300, expected a value of"));
  EXPECT_THAT(message(Type::kInt64, 0.0), HasSubstr("0 (a double), expected a value of int64"));
  EXPECT_THAT(message(Type::kFloat, 1e300), HasSubstr("1e+300 (a double), expected a value of float32"));
  EXPECT_THAT(message(Type::kHalf, int64_t{70'000}), HasSubstr("70000, expected a value of float16"));
  EXPECT_EQ(message(Type::kHalf, std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_EQ(message(Type::kFloat, -std::numeric_limits<double>::infinity()), "");
  EXPECT_THAT(message(Type::kFloat, std::string("?")), HasSubstr("\"?\", expected a value of float32"));
}

TEST(PackedRows, OfDifferentLengthsAreNoBatch) {
  const PackedRows layout({{.name = "tags", .type = Type::kInt32, .varies = true}});
  const Status status =
      caught([&] { parsed(layout, {with_length(bytes_of(1)), with_length(bytes_of(1) + bytes_of(2))}); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("row 1"), HasSubstr("tags"), HasSubstr("padded_batch")));
}

TEST(PackedRows, AreNotReadBeyondTheirEnd) {
  const PackedRows layout({{.name = "x", .type = Type::kInt64},
                           {.name = "word", .type = Type::kString},
                           {.name = "tags", .type = Type::kInt32, .varies = true}});
  const std::string whole = bytes_of(int64_t{3}) + with_length("abc") + with_length(bytes_of(1));
  EXPECT_NO_THROW(parsed(layout, {whole}));

  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Status status = caught([&] { parsed(layout, {whole, whole.substr(0, bytes)}); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(status.message(), HasSubstr("row 1"));
  }
  EXPECT_EQ(caught([&] { parsed(layout, {whole + "x"}); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(caught([&] { parsed(layout, {bytes_of(int64_t{3}) + with_length("abc") + with_length("12345")}); }).code(),
            StatusCode::kDataLoss);
}

TEST(PackedRows, RefuseWhatNoRowHas) {
  auto refused = [](std::vector<PackedField> fields) {
    return caught([&] { const PackedRows rows(std::move(fields)); }).message();
  };
  EXPECT_THAT(refused({}), HasSubstr("without columns"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8}, {.name = "x", .type = Type::kInt8}}), HasSubstr("twice"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8, .sizes = {-1}}}), HasSubstr("int8[-1]"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8, .sizes = {int64_t{1} << 62, 8}}}), HasSubstr("bytes"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8, .sizes = {2}, .varies = true}}), HasSubstr("list of int8"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8, .otherwise = int64_t{200}}}), HasSubstr("otherwise"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kInt8, .otherwise = 1.0}}), HasSubstr("otherwise"));
  EXPECT_THAT(refused({{.name = "x", .type = Type::kString, .otherwise = int64_t{1}}}), HasSubstr("otherwise"));
}

}  // namespace
}  // namespace muster::packed_rows_test
