// Parquet files, by Apache Arrow, if Muster was built with it (cmake/Parquet.cmake).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/data/file_options.h"
#include "muster/data/files/packed_rows.h"
#include "muster/data/files/record_reader.h"

namespace muster {

bool has_parquet();
// Throws Error{kFailedPrecondition} that says how to get it, if Muster was built without.
void check_has_parquet();

// How the rows of a file are packed: these columns of it, or all. Throws what InputFile throws, Error{kDataLoss} for
// what is no Parquet file, and Error{kInvalidArgument} for a column that is not there or is of a type that has no
// tensors.
std::vector<PackedField> parquet_fields(const std::string& path, const std::vector<ParquetColumn>& columns);

// Its rows, packed. It holds some thousand of them at a time, and what Arrow holds of a row group. A row with a null
// that has no value otherwise, or with a number that is too large, is Error{kInvalidArgument}, and the next call goes
// on after it; damage is Error{kDataLoss}, and the next call goes on with the row group after it. Throws as
// parquet_fields for columns that are not there or are of another type.
std::unique_ptr<RecordReader> open_parquet(const std::string& path, const std::vector<PackedField>& fields);

}  // namespace muster
