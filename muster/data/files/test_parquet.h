// Writes Parquet files, for the tests of those that read them. Not part of the library.
#pragma once

#include <arrow/builder.h>
#include <arrow/io/file.h>
#include <arrow/table.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::testing_support {

// A column with its name and values; nothing is a null.
struct ParquetValues {
  std::string name;
  std::shared_ptr<arrow::Array> array;
};

template <class Type, class Value>
ParquetValues parquet_values(const std::string& name, const std::vector<std::optional<Value>>& values,
                             const std::shared_ptr<arrow::DataType>& type) {
  typename arrow::TypeTraits<Type>::BuilderType builder(type, arrow::default_memory_pool());
  for (const auto& value : values) {
    EXPECT_TRUE((value ? builder.Append(*value) : builder.AppendNull()).ok());
  }
  return {name, *builder.Finish()};
}
inline ParquetValues int64_values(const std::string& name, const std::vector<std::optional<int64_t>>& values) {
  return parquet_values<arrow::Int64Type>(name, values, arrow::int64());
}
inline ParquetValues float_values(const std::string& name, const std::vector<std::optional<float>>& values) {
  return parquet_values<arrow::FloatType>(name, values, arrow::float32());
}
inline ParquetValues string_values(const std::string& name, const std::vector<std::optional<std::string>>& values) {
  return parquet_values<arrow::StringType>(name, values, arrow::utf8());
}

// Lists of int32.
inline ParquetValues list_values(const std::string& name,
                                 const std::vector<std::optional<std::vector<std::optional<int32_t>>>>& lists) {
  auto values = std::make_shared<arrow::Int32Builder>();
  arrow::ListBuilder builder(arrow::default_memory_pool(), values);
  for (const auto& list : lists) {
    EXPECT_TRUE((list ? builder.Append() : builder.AppendNull()).ok());
    if (!list) continue;
    for (const auto& value : *list) EXPECT_TRUE((value ? values->Append(*value) : values->AppendNull()).ok());
  }
  return {name, *builder.Finish()};
}

inline std::string write_parquet(const std::string& path, const std::vector<ParquetValues>& columns,
                                 int64_t rows_of_group = 1'000) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const ParquetValues& column : columns) {
    fields.push_back(arrow::field(column.name, column.array->type()));
    arrays.push_back(column.array);
  }
  const auto out = *arrow::io::FileOutputStream::Open(path);
  const auto as_arrow = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  EXPECT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, rows_of_group,
                                         parquet::default_writer_properties(), as_arrow)
                  .ok());
  EXPECT_TRUE(out->Close().ok());
  return path;
}

}  // namespace muster::testing_support
