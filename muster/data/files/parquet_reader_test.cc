#include "muster/data/files/parquet_reader.h"

#ifdef MUSTER_HAS_PARQUET
#include <arrow/array.h>
#include <arrow/extension/fixed_shape_tensor.h>

#include "muster/data/files/test_parquet.h"
#endif

#include <c10/util/Half.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "muster/io/test_files.h"

namespace muster::parquet_reader_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::caught;

#ifdef MUSTER_HAS_PARQUET

using testing_support::float_values;
using testing_support::int64_values;
using testing_support::list_values;
using testing_support::parquet_values;
using testing_support::ParquetValues;
using testing_support::string_values;
using testing_support::write_parquet;

class ParquetReaderTest : public testing::Test {
 protected:
  std::string write(const std::vector<ParquetValues>& columns, int64_t rows_of_group = 1'000) const {
    return write_parquet(directory_.path("a.parquet"), columns, rows_of_group);
  }
  // All rows of it, in one batch.
  static Columns read(const std::string& path, const std::vector<ParquetColumn>& columns = {}) {
    const std::vector<PackedField> fields = parquet_fields(path, columns);
    const std::unique_ptr<RecordReader> reader = open_parquet(path, fields);
    std::vector<std::string> rows;
    while (const auto row = reader->next()) rows.emplace_back(*row);
    return PackedRows(fields).parse(std::vector<std::string_view>(rows.begin(), rows.end()));
  }
  template <class Number>
  static std::vector<Number> values(const Column& column) {
    const auto* at = static_cast<const Number*>(column.tensor().const_data_ptr());
    return std::vector<Number>(at, at + column.tensor().numel());
  }
  static std::vector<std::string> words(const Column& column) {
    std::vector<std::string> all;
    for (size_t i = 0; i < column.strings().count(); ++i) all.emplace_back(column.strings()[i]);
    return all;
  }

  const testing_support::ScopedDirectory directory_;
};

template <class Type, class Value>
ParquetValues two(const std::string& name, Value first, Value second,
                  const std::shared_ptr<arrow::DataType>& type = arrow::TypeTraits<Type>::type_singleton()) {
  return parquet_values<Type>(name, std::vector<std::optional<Value>>{first, second}, type);
}

TEST_F(ParquetReaderTest, GivesEveryKindOfNumberAsATensorOfItsType) {
  const Columns columns = read(write({
      two<arrow::BooleanType>("bool", true, false),
      two<arrow::Int8Type>("int8", int8_t{-3}, int8_t{4}),
      two<arrow::Int16Type>("int16", int16_t{-300}, int16_t{400}),
      two<arrow::Int32Type>("int32", -70'000, 70'001),
      two<arrow::Int64Type>("int64", int64_t{1} << 40, int64_t{-2}),
      two<arrow::UInt8Type>("uint8", uint8_t{3}, uint8_t{250}),
      two<arrow::UInt16Type>("uint16", uint16_t{3}, uint16_t{65'535}),
      two<arrow::UInt32Type>("uint32", uint32_t{3}, uint32_t{4'000'000'000}),
      two<arrow::UInt64Type>("uint64", uint64_t{3}, uint64_t{1} << 62),
      two<arrow::HalfFloatType>("half", c10::Half(1.5F).x, c10::Half(-2.0F).x),
      two<arrow::FloatType>("float", 1.5F, -2.25F),
      two<arrow::DoubleType>("double", 1.5, -2.25),
      two<arrow::Date32Type>("date", 19'000, -1),
      parquet_values<arrow::TimestampType>("time", std::vector<std::optional<int64_t>>{1'700'000'000'000'001, -5},
                                           arrow::timestamp(arrow::TimeUnit::MICRO, "UTC")),
  }));

  ASSERT_EQ(columns.size(), 14u);
  std::vector<std::string> types;
  for (const Column& column : columns) types.push_back(column.to_string());
  EXPECT_THAT(types,
              ElementsAre("bool[2]", "int8[2]", "int16[2]", "int32[2]", "int64[2]", "uint8[2]", "int32[2]", "int64[2]",
                          "int64[2]", "float16[2]", "float32[2]", "float64[2]", "int64[2]", "int64[2]"));
  EXPECT_THAT(values<bool>(columns[0]), ElementsAre(true, false));
  EXPECT_THAT(values<int8_t>(columns[1]), ElementsAre(-3, 4));
  EXPECT_THAT(values<int16_t>(columns[2]), ElementsAre(-300, 400));
  EXPECT_THAT(values<int32_t>(columns[3]), ElementsAre(-70'000, 70'001));
  EXPECT_THAT(values<int64_t>(columns[4]), ElementsAre(int64_t{1} << 40, -2));
  EXPECT_THAT(values<uint8_t>(columns[5]), ElementsAre(3, 250));
  EXPECT_THAT(values<int32_t>(columns[6]), ElementsAre(3, 65'535));
  EXPECT_THAT(values<int64_t>(columns[7]), ElementsAre(3, 4'000'000'000));
  EXPECT_THAT(values<int64_t>(columns[8]), ElementsAre(3, int64_t{1} << 62));
  EXPECT_THAT(values<c10::Half>(columns[9]), ElementsAre(c10::Half(1.5F), c10::Half(-2.0F)));
  EXPECT_THAT(values<float>(columns[10]), ElementsAre(1.5F, -2.25F));
  EXPECT_THAT(values<double>(columns[11]), ElementsAre(1.5, -2.25));
  EXPECT_THAT(values<int64_t>(columns[12]), ElementsAre(19'000, -1));
  EXPECT_THAT(values<int64_t>(columns[13]), ElementsAre(1'700'000'000'000'001, -5));
}

TEST_F(ParquetReaderTest, GivesEveryKindOfTextAsStrings) {
  const auto words_of = *arrow::DictionaryArray::FromArrays(arrow::dictionary(arrow::int32(), arrow::utf8()),
                                                            two<arrow::Int32Type>("", 1, 0).array,
                                                            string_values("", {"no", "yes"}).array);
  const Columns columns = read(write({
      string_values("text", {"a", ""}),
      two<arrow::BinaryType>("bytes", std::string("\0\xff", 2), std::string("b")),
      two<arrow::LargeStringType>("large", std::string("c"), std::string("dd")),
      two<arrow::FixedSizeBinaryType>("fixed", std::string("123"), std::string("456"), arrow::fixed_size_binary(3)),
      {"dictionary", words_of},
      two<arrow::StringViewType>("view", std::string(40, 'e'), std::string("f")),
      two<arrow::BinaryViewType>("bytes view", std::string("\0", 1), std::string(40, '\0')),
  }));

  ASSERT_EQ(columns.size(), 7u);
  EXPECT_THAT(words(columns[0]), ElementsAre("a", ""));
  EXPECT_THAT(words(columns[1]), ElementsAre(std::string("\0\xff", 2), "b"));
  EXPECT_THAT(words(columns[2]), ElementsAre("c", "dd"));
  EXPECT_THAT(words(columns[3]), ElementsAre("123", "456"));
  EXPECT_THAT(words(columns[4]), ElementsAre("yes", "no"));
  EXPECT_THAT(words(columns[5]), ElementsAre(std::string(40, 'e'), "f"));
  EXPECT_THAT(words(columns[6]), ElementsAre(std::string("\0", 1), std::string(40, '\0')));
}

TEST_F(ParquetReaderTest, GivesListsOfOneSizeTheirShape) {
  const auto six = float_values("", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).array;
  const auto threes = *arrow::FixedSizeListArray::FromArrays(six, 3);
  const auto pairs_of_threes = *arrow::FixedSizeListArray::FromArrays(threes, 2);
  const auto tensors =
      arrow::ExtensionType::WrapArray(*arrow::extension::FixedShapeTensorType::Make(arrow::float32(), {3, 2}),
                                      *arrow::FixedSizeListArray::FromArrays(six, 6));
  const Columns columns = read(write({{"nested", pairs_of_threes}, {"tensors", tensors}}));

  ASSERT_EQ(columns.size(), 2u);
  EXPECT_EQ(columns[0].to_string(), "float32[2, 2, 3]");
  EXPECT_EQ(columns[1].to_string(), "float32[2, 3, 2]");
  for (const Column& column : columns) {
    EXPECT_THAT(values<float>(column), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  }
}

TEST_F(ParquetReaderTest, ReadsTheColumnsThatAreWantedInTheirOrder) {
  const std::string path = write({int64_values("a", {1}), string_values("b", {"x"}), float_values("c", {2})});

  std::vector<std::string> names;
  for (const PackedField& field : parquet_fields(path, {{.name = "c"}, {.name = "a"}})) names.push_back(field.name);

  EXPECT_THAT(names, ElementsAre("c", "a"));
  EXPECT_THAT(values<float>(read(path, {{.name = "c"}, {.name = "a"}})[0]), ElementsAre(2));
  EXPECT_THAT(caught([&] { parquet_fields(path, {{.name = "d"}}); }).message(),
              AllOf(HasSubstr("a.parquet"), HasSubstr("\"d\""), HasSubstr("a, b, c")));
  EXPECT_THAT(caught([&] { parquet_fields(path, {{.name = "a"}, {.name = "a"}}); }).message(), HasSubstr("twice"));
}

TEST_F(ParquetReaderTest, NamesTheRowAndColumnOfANullAndGoesOnAfterIt) {
  const std::string path = write({int64_values("a", {1, {}, 3}), string_values("b", {"x", "y", {}})}, 2);
  const auto reader = open_parquet(path, parquet_fields(path, {}));

  EXPECT_TRUE(reader->next());
  const Status null = caught([&] { reader->next(); });
  EXPECT_EQ(null.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(null.message(),
              AllOf(HasSubstr("a.parquet\": row 1: column \"a\" is null"), HasSubstr("ParquetColumn::otherwise")));
  EXPECT_THAT(caught([&] { reader->next(); }).message(), HasSubstr("row 2: column \"b\""));
  EXPECT_FALSE(reader->next());
}

TEST_F(ParquetReaderTest, HasWhatANullStandsFor) {
  const auto pairs = *arrow::FixedSizeListArray::FromArrays(float_values("", {1, {}, 3, 4}).array, 2);
  const std::string path = write({int64_values("a", {1, {}}),
                                  string_values("b", {{}, "y"}),
                                  list_values("c", {std::vector<std::optional<int32_t>>{7, {}}, {}}),
                                  {"d", pairs}});
  const std::vector<ParquetColumn> columns{{.name = "a", .otherwise = int64_t{-1}},
                                           {.name = "b", .otherwise = std::string("?")},
                                           {.name = "d", .otherwise = 0.5}};

  const Columns read_columns = read(path, columns);

  EXPECT_THAT(values<int64_t>(read_columns[0]), ElementsAre(1, -1));
  EXPECT_THAT(words(read_columns[1]), ElementsAre("?", "y"));
  EXPECT_THAT(values<float>(read_columns[2]), ElementsAre(1, 0.5F, 3, 4));
  EXPECT_THAT(caught([&] { read(path, {{.name = "c", .otherwise = int64_t{5}}}); }).message(),
              AllOf(HasSubstr("0 values"), HasSubstr("2;")))
      << "a list that is null is empty";
  EXPECT_THAT(caught([&] { read(path, {{.name = "c"}}); }).message(), HasSubstr("row 0: column \"c\" is null"));
  EXPECT_THAT(caught([&] { read(path, {{.name = "d"}}); }).message(), HasSubstr("row 0: column \"d\" is null"));
}

TEST_F(ParquetReaderTest, RefusesNumbersThatNoTensorHolds) {
  const std::string path = write({two<arrow::UInt64Type>("a", uint64_t{1}, uint64_t{1} << 63)});

  EXPECT_THAT(caught([&] { read(path); }).message(), HasSubstr("row 1: column \"a\" is too large for int64"));
}

TEST_F(ParquetReaderTest, RefusesTypesThatHaveNoTensorsByColumn) {
  const auto numbers = int64_values("x", {1, 2}).array;
  const auto structs = *arrow::StructArray::Make({numbers}, std::vector<std::string>{"x"});
  const std::string path = write({int64_values("a", {1, 2}), {"b", structs}});

  const Status status = caught([&] { read(path); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("column \"b\""), HasSubstr("struct<x: int64>"), HasSubstr("ParquetOptions::columns")));
  EXPECT_NO_THROW(read(path, {{.name = "a"}}));
}

TEST_F(ParquetReaderTest, ReadsRowGroupAfterRowGroup) {
  std::vector<std::optional<int64_t>> numbers;
  std::vector<std::optional<std::string>> texts;
  for (int64_t i = 0; i < 10'000; ++i) {
    numbers.emplace_back(i);
    texts.emplace_back(std::string(static_cast<size_t>(i % 7), 'a') + std::to_string(i));
  }
  const std::string path = write({int64_values("a", numbers), string_values("b", texts)}, 4'999);
  const auto fields = parquet_fields(path, {});
  const auto reader = open_parquet(path, fields);
  const PackedRows rows(fields);

  for (int64_t i = 0; i < 10'000; ++i) {
    const std::string_view row = *reader->next();
    const Columns columns = rows.parse(std::span(&row, 1));
    ASSERT_EQ(values<int64_t>(columns[0])[0], i);
    ASSERT_EQ(words(columns[1])[0], *texts[static_cast<size_t>(i)]);
    ASSERT_EQ(reader->number(), i);
  }
  EXPECT_FALSE(reader->next());
  EXPECT_FALSE(reader->next());
}

TEST_F(ParquetReaderTest, RefusesAColumnThatIsOfAnotherTypeThanInTheFirstFile) {
  const std::string path = write({int64_values("a", {1})});
  const std::vector<PackedField> fields = parquet_fields(path, {});
  const std::string other = write_parquet(directory_.path("b.parquet"), {float_values("a", {1})});
  const std::string without = write_parquet(directory_.path("c.parquet"), {int64_values("b", {1})});

  EXPECT_THAT(caught([&] { open_parquet(other, fields); }).message(),
              AllOf(HasSubstr("b.parquet"), HasSubstr("\"a\" is float32, expected int64")));
  EXPECT_THAT(caught([&] { open_parquet(without, fields); }).message(), HasSubstr("no column \"a\""));
  EXPECT_EQ(caught([&] { open_parquet(directory_.path("none"), fields); }).code(), StatusCode::kNotFound);
}

TEST_F(ParquetReaderTest, RefusesTimesOfAnotherUnitThanInTheFirstFile) {
  auto times = [](const std::shared_ptr<arrow::DataType>& type) {
    return parquet_values<arrow::TimestampType>("a", std::vector<std::optional<int64_t>>{1'000}, type);
  };
  const std::string path = write({times(arrow::timestamp(arrow::TimeUnit::MILLI))});
  const std::vector<PackedField> fields = parquet_fields(path, {});
  auto message = [&](const ParquetValues& values) {
    const std::string other = write_parquet(directory_.path("b.parquet"), {values});
    return caught([&] { open_parquet(other, fields); }).message();
  };

  EXPECT_THAT(message(times(arrow::timestamp(arrow::TimeUnit::MICRO))),
              HasSubstr("b.parquet\": column \"a\" is int64 of us, expected int64 of ms, as in the first file"));
  EXPECT_THAT(message(parquet_values<arrow::Date32Type>("a", std::vector<std::optional<int32_t>>{1}, arrow::date32())),
              HasSubstr("is int64 of days, expected int64 of ms"));
  EXPECT_THAT(message(int64_values("a", {1})), HasSubstr("is int64, expected int64 of ms"));
  EXPECT_EQ(message(times(arrow::timestamp(arrow::TimeUnit::MILLI, "UTC"))), "") << "the same moments";
}

TEST_F(ParquetReaderTest, HoldsAFewOfManyRowsThatHaveALongWordOfADictionary) {
  constexpr int64_t kRows = 1'500;
  arrow::Int32Builder numbers;
  for (int64_t i = 0; i < kRows; ++i) ASSERT_TRUE(numbers.Append(0).ok());
  const auto column =
      *arrow::DictionaryArray::FromArrays(*numbers.Finish(), string_values("", {std::string(400'000, 'x')}).array);
  const auto table = arrow::Table::Make(arrow::schema({arrow::field("a", column->type())}), {column});
  const std::string path = directory_.path("a.parquet");
  const auto out = *arrow::io::FileOutputStream::Open(path);
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, kRows).ok());  // as plain strings
  ASSERT_TRUE(out->Close().ok());
  const auto reader = open_parquet(path, parquet_fields(path, {}));

  int64_t rows = 0;
  while (reader->next()) ++rows;

  EXPECT_EQ(rows, kRows);
  EXPECT_LT(arrow::default_memory_pool()->max_memory(), 256 << 20) << "all of them have 600 MB";
}

TEST_F(ParquetReaderTest, SaysSoIfARowGroupHasFewerRowsThanItShould) {
  std::vector<std::optional<int64_t>> numbers(1'000, 1);
  const std::string path = write({int64_values("a", numbers)});
  const std::vector<PackedField> fields = parquet_fields(path, {});
  std::string bytes = testing_support::read_file(path);
  const std::string thousand = "\xd0\x0f", more = "\xe0\x0f";  // 1'000 and 1'008, as Thrift has them
  uint32_t footer = 0;
  std::memcpy(&footer, bytes.data() + bytes.size() - 8, sizeof footer);
  for (size_t at = bytes.size() - 8 - footer; (at = bytes.find(thousand, at)) != std::string::npos;) {
    bytes.replace(at, 2, more);
  }
  testing_support::write_file(path, bytes);
  const auto reader = open_parquet(path, fields);

  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(reader->next());
  const Status status = caught([&] { reader->next(); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("row group 0 cannot be read: it ends after 1000 rows, expected 1008"));
  EXPECT_FALSE(reader->next());
}

TEST_F(ParquetReaderTest, RefusesAFileThatWasCutShortOrIsNone) {
  const std::string path = write({int64_values("a", {1, 2, 3})});
  const std::string whole = testing_support::read_file(path);

  for (const std::string& text : {std::string(), std::string("PAR1"), std::string(1'000, 'x'),
                                  whole.substr(0, whole.size() - 1), whole.substr(whole.size() / 2)}) {
    testing_support::write_file(path, text);
    const Status status = caught([&] { parquet_fields(path, {}); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text.size();
    EXPECT_THAT(status.message(), HasSubstr("a.parquet\": it is no Parquet file"));
  }
}

TEST_F(ParquetReaderTest, GoesOnWithTheRowGroupAfterOneThatIsDamaged) {
  std::vector<std::optional<int64_t>> numbers;
  for (int64_t i = 0; i < 3'000; ++i) numbers.emplace_back(i * i * 7'919 % 10'007);
  const std::string path = write({int64_values("a", numbers)}, 1'000);
  const std::vector<PackedField> fields = parquet_fields(path, {});
  std::string bytes = testing_support::read_file(path);
  std::fill(bytes.begin() + 4, bytes.begin() + 44, '\xff');  // what the first page begins with
  testing_support::write_file(path, bytes);
  const auto reader = open_parquet(path, fields);

  const Status status = caught([&] { reader->next(); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("a.parquet\": row 0: row group 0 cannot be read"));
  int64_t rows = 0;
  while (reader->next()) EXPECT_EQ(reader->number(), 1'000 + rows++);
  EXPECT_EQ(rows, 2'000);
}

TEST_F(ParquetReaderTest, SurvivesWhicheverByteIsDamaged) {
  const std::string path =
      write({int64_values("a", {1, {}, 3}), string_values("b", {"x", "yy", "x"}),
             list_values("c", {std::vector<std::optional<int32_t>>{7, 8}, {}, std::vector<std::optional<int32_t>>{}})},
            2);
  const std::string whole = testing_support::read_file(path);

  for (size_t place = 0; place < whole.size(); ++place) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[place] = static_cast<char>(damaged[place] ^ change);
      testing_support::write_file(path, damaged);
      try {
        const auto reader = open_parquet(path, parquet_fields(path, {}));
        for (int tries = 0; tries < 20; ++tries) {
          if (caught([&] { reader->next(); }).code() == StatusCode::kUnknown) ADD_FAILURE() << place;
        }
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("a.parquet"));
      }
    }
  }
}

#else

TEST(ParquetReader, SaysHowToBuildItWhereItIsNot) {
  const Status fields = caught([] { parquet_fields("a.parquet", {}); });
  const Status reader = caught([] { open_parquet("a.parquet", {}); });

  EXPECT_FALSE(has_parquet());
  for (const Status& status : {fields, reader}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("without Apache Arrow"), HasSubstr("MUSTER_PYARROW")));
  }
}

#endif

}  // namespace
}  // namespace muster::parquet_reader_test
