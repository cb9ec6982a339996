#include "muster/data/files/parquet_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#ifdef MUSTER_HAS_PARQUET
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/size_statistics.h>
#endif

#include "muster/base/status.h"
#include "muster/data/files/arrow_columns.h"
#include "muster/io/input_file.h"

namespace muster {

#ifdef MUSTER_HAS_PARQUET

namespace {

// What is decoded at once, and what of it is packed at once: a column may say one long word again and again.
constexpr int64_t kMostRowsDecoded = 16'384, kBytesDecoded = 8 << 20;
constexpr int64_t kFewerAtOnce = 16;  // so many times, where all of them are too large
constexpr size_t kMostRowsPacked = 512, kBytesPacked = 1 << 20;
constexpr int64_t kMostArrowBytes = int64_t{4} << 30;  // of one file: a page of it may have 2 GiB

// An InputFile as Arrow reads one. It keeps what went wrong, since Arrow hands on no more than the words.
class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  ArrowFile(const InputFile& file, arrow::MemoryPool* pool) : file_(file), pool_(pool) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Result<int64_t> GetSize() override { return file_.size(); }
  arrow::Status Seek(int64_t position) override {
    if (position < 0 || position > file_.size()) {
      return arrow::Status::Invalid("byte ", position, " of a file of ", file_.size());
    }
    at_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> Read(int64_t count, void* out) override {
    count = possible(count);
    try {
      file_.read(at_, {static_cast<std::byte*>(out), static_cast<size_t>(count)});
    } catch (const Error& error) {
      failure_ = error.status();
      return arrow::Status::IOError(error.status().message());
    }
    at_ += count;
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t count) override {
    count = possible(count);
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, arrow::AllocateBuffer(count, pool_));
    ARROW_RETURN_NOT_OK(Read(count, buffer->mutable_data()));
    return buffer;
  }

  std::optional<Status> take_failure() { return std::exchange(failure_, std::nullopt); }

 private:
  int64_t possible(int64_t count) const { return std::clamp<int64_t>(count, 0, file_.size() - at_); }

  const InputFile& file_;
  arrow::MemoryPool* const pool_;
  int64_t at_ = 0;
  bool closed_ = false;
  std::optional<Status> failure_;
};

// A file with Arrow's reader of it. Not thread-safe.
class ParquetFile {
 public:
  explicit ParquetFile(const InputFile& file)
      : where_(str_cat("file \"", file.path(), "\"")), file_(std::make_shared<ArrowFile>(file, &pool_)) {
    reader_ = checked(str_cat(where_, ": it is no Parquet file"), [&]() -> arrow::Result<Reader> {
      parquet::ReaderProperties properties(&pool_);
      properties.enable_buffered_stream();
      properties.set_page_checksum_verification(true);
      parquet::ArrowReaderProperties in_arrow(/*use_threads=*/false);
      in_arrow.set_pre_buffer(false);  // it would hold all row groups
      parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Open(file_, properties));
      Reader reader;
      ARROW_RETURN_NOT_OK(builder.memory_pool(&pool_)->properties(in_arrow)->Build(&reader));
      return reader;
    });
    schema_ = checked(where_, [&]() -> arrow::Result<std::shared_ptr<arrow::Schema>> {
      std::shared_ptr<arrow::Schema> schema;
      ARROW_RETURN_NOT_OK(reader_->GetSchema(&schema));
      return schema;
    });
  }

  const std::string& where() const { return where_; }
  const arrow::Schema& schema() const { return *schema_; }
  parquet::arrow::FileReader& reader() { return *reader_; }

  // The type of a column. Throws Error{kInvalidArgument} if there is none, or several.
  const arrow::DataType& type_of(const std::string& name) const {
    const std::vector<int> found = schema_->GetAllFieldIndices(name);
    if (found.size() == 1) return *schema_->field(found[0])->type();
    std::string names;
    for (const auto& field : schema_->fields()) str_append(names, names.empty() ? "" : ", ", field->name());
    throw invalid_argument(where_, ": ", found.empty() ? "no" : "more than one", " column \"", name, "\"; it has ",
                           names.substr(0, 1'000));
  }

  // What `call` returns, an arrow::Result. Else throws an Error that begins with `what`.
  template <class Call>
  typename std::invoke_result_t<Call>::ValueType checked(const std::string& what, const Call& call) {
    auto result = [&]() -> decltype(call()) {
      try {
        return call();
      } catch (const std::bad_alloc&) {
        return arrow::Status::OutOfMemory("no memory");
      } catch (const std::exception& failure) {
        return arrow::Status::Invalid(failure.what());
      }
    }();
    if (result.ok()) return std::move(result).ValueUnsafe();
    if (const std::optional<Status> failure = file_->take_failure()) throw Error(*failure);
    const std::string words = result.status().message().substr(0, 500);
    if (result.status().IsOutOfMemory()) throw resource_exhausted(what, ": ", words);
    throw data_loss(what, ": ", words);
  }

 private:
  using Reader = std::unique_ptr<parquet::arrow::FileReader>;

  const std::string where_;
  arrow::CappedMemoryPool pool_{arrow::default_memory_pool(), kMostArrowBytes};
  const std::shared_ptr<ArrowFile> file_;
  Reader reader_;
  std::shared_ptr<arrow::Schema> schema_;
};

PackedField field_of(const ParquetFile& file, const std::string& name) {
  const arrow::DataType& type = file.type_of(name);
  if (std::optional<PackedField> field = packed_field(name, type)) return *std::move(field);
  throw invalid_argument(file.where(), ": column \"", name, "\" is ", type.ToString().substr(0, 200),
                         ", expected numbers, bools, strings, or lists of numbers; ParquetOptions::columns names those "
                         "that are wanted");
}

template <size_t kBytes>
void scatter(const char* from, size_t rows, size_t stride, char* to) {
  for (size_t i = 0; i < rows; ++i) std::memcpy(to + i * stride, from + i * kBytes, kBytes);
}

// To rows that are as long as each other.
void scatter(const char* from, size_t bytes, size_t rows, size_t stride, char* to) {
  switch (bytes) {
    case 0: return;
    case 1: return scatter<1>(from, rows, stride, to);
    case 2: return scatter<2>(from, rows, stride, to);
    case 4: return scatter<4>(from, rows, stride, to);
    case 8: return scatter<8>(from, rows, stride, to);
    default:
      for (size_t i = 0; i < rows; ++i) std::memcpy(to + i * stride, from + i * bytes, bytes);
  }
}

class ParquetReader final : public RecordReader {
 public:
  ParquetReader(const std::string& path, const std::vector<PackedField>& fields)
      : RecordReader(path, Compression::kNone, "row", 0), rows_(fields), file_(bytes_.file()) {
    for (const PackedField& field : rows_.fields()) check_type(field);
    file_.checked(file_.where(), [&]() -> arrow::Result<bool> {
      choose_columns();
      return true;
    });
  }

  std::optional<std::string_view> next() override {
    while (row_ == packed_end_) {
      if (row_ == decoded_rows_ && !decode_more()) return std::nullopt;
      if (row_ < decoded_rows_) pack_more();
    }
    const size_t row = row_++;
    number_ = upcoming_++;
    if (!wrong_.empty()) throw_if_wrong(row);
    const size_t begin = ends_[row - packed_begin_], end = ends_[row - packed_begin_ + 1];
    return std::string_view(packed_).substr(begin, end - begin);
  }

  std::optional<Columns> next_columns(int64_t most) override {
    while (row_ == decoded_rows_) {
      if (!decode_more()) return std::nullopt;
    }
    const size_t begin = row_;
    auto wrong = wrong_.lower_bound(begin);
    const bool is_wrong = wrong != wrong_.end() && wrong->first == begin;
    const size_t end = std::min(is_wrong || wrong == wrong_.end() ? decoded_rows_ : wrong->first,
                                begin + (is_wrong ? 1 : static_cast<size_t>(std::max<int64_t>(most, 1))));
    row_ = end;
    if (row_ > packed_end_) packed_begin_ = packed_end_ = row_;
    upcoming_ += static_cast<int64_t>(end - begin);
    number_ = upcoming_ - 1;
    if (is_wrong) throw_if_wrong(begin);
    Columns columns;
    columns.reserve(columns_.size());
    for (size_t f = 0; f < columns_.size(); ++f) {
      if (!rows_.fields()[f].has_length()) {
        columns.emplace_back(rows_.tensor(f, columns_[f].numbers.at + begin * rows_.bytes(f), end - begin));
        continue;
      }
      Strings strings;
      for (size_t row = begin; row < end; ++row) strings.append(columns_[f].views[row]);
      columns.emplace_back(std::move(strings));
    }
    return columns;
  }

 private:
  void check_type(const PackedField& wanted) const {
    const PackedField found = field_of(file_, wanted.name);
    if (found.is_like(wanted)) return;
    throw invalid_argument(file_.where(), ": column \"", wanted.name, "\" is ", found.to_string(), ", expected ",
                           wanted.to_string(), ", as in the first file");
  }

  void choose_columns() {
    std::set<std::string_view> wanted;
    for (const PackedField& field : rows_.fields()) wanted.insert(field.name);
    for (const parquet::arrow::SchemaField& field : file_.reader().manifest().schema_fields) {
      if (wanted.contains(field.field->name())) add_leaves(field);
    }
    const std::shared_ptr<parquet::FileMetaData> metadata = file_.reader().parquet_reader()->metadata();
    int64_t widest = 1;
    groups_.push_back(0);
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      const auto about = metadata->RowGroup(group);
      const int64_t rows = std::clamp<int64_t>(about->num_rows(), 0, int64_t{1} << 40);
      int64_t bytes = 0;
      for (const int leaf : leaves_) bytes += bytes_of(*about->ColumnChunk(leaf));
      if (rows > 0) widest = std::max(widest, bytes / rows);
      groups_.push_back(groups_.back() + rows);
    }
    decode_at_once(std::clamp<int64_t>(kBytesDecoded / widest, 1, kMostRowsDecoded));
  }

  // Once it is decoded, as far as the file says: a dictionary has a word once, however many rows have it.
  static int64_t bytes_of(const parquet::ColumnChunkMetaData& chunk) {
    int64_t bytes = chunk.total_uncompressed_size();
    if (const std::shared_ptr<parquet::SizeStatistics> sizes = chunk.size_statistics()) {
      bytes = std::max(bytes, sizes->unencoded_byte_array_data_bytes.value_or(0));
    }
    return std::clamp<int64_t>(bytes, 0, int64_t{1} << 40);
  }

  void decode_at_once(int64_t rows) {
    rows_at_once_ = rows;
    file_.reader().set_batch_size(rows);
  }

  void add_leaves(const parquet::arrow::SchemaField& field) {
    if (field.is_leaf()) leaves_.push_back(field.column_index);
    for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child);
  }

  // Whether there are more rows, which are in `columns_` then.
  bool decode_more() {
    while (group_ + 1 < groups_.size()) {
      try {
        if (decode_batch()) return true;
      } catch (const Error& error) {
        batches_ = nullptr;
        row_ = decoded_rows_ = packed_begin_ = packed_end_ = 0;
        number_ = upcoming_;
        const bool fewer = error.code() == StatusCode::kResourceExhausted && rows_at_once_ > 1;
        if (fewer || error.code() == StatusCode::kUnavailable) {  // the same again
          to_leave_out_ = static_cast<size_t>(upcoming_ - groups_[group_]);
        } else {
          to_leave_out_ = 0;
          upcoming_ = groups_[++group_];
        }
        if (!fewer) throw;
        decode_at_once(std::max<int64_t>(rows_at_once_ / kFewerAtOnce, 1));
        continue;
      }
      batches_ = nullptr;
      to_leave_out_ = 0;
      upcoming_ = groups_[++group_];
    }
    return false;
  }

  // The next batch of a row group, if it has one.
  bool decode_batch() {
    const std::string what = str_cat(file_.where(), ": row ", upcoming_, ": row group ", group_, " cannot be read");
    columns_.clear();
    wrong_.clear();
    row_ = decoded_rows_ = packed_begin_ = packed_end_ = 0;
    using Batch = std::shared_ptr<arrow::RecordBatch>;
    const Batch batch = file_.checked(what, [&]() -> arrow::Result<Batch> {
      if (!batches_) {
        ARROW_ASSIGN_OR_RAISE(batches_, file_.reader().GetRecordBatchReader({static_cast<int>(group_)}, leaves_));
      }
      Batch next;
      ARROW_RETURN_NOT_OK(batches_->ReadNext(&next));
      if (next) ARROW_RETURN_NOT_OK(next->Validate());
      return next;
    });
    if (!batch) {
      if (upcoming_ == groups_[group_ + 1]) return false;
      throw data_loss(what, ": it ends after ", upcoming_ - groups_[group_], " rows, expected ",
                      groups_[group_ + 1] - groups_[group_]);
    }
    for (const PackedField& field : rows_.fields()) {
      const std::shared_ptr<arrow::Array> array = batch->GetColumnByName(field.name);
      if (!array) throw data_loss(what, ": it has no column \"", field.name, "\"");
      try {
        columns_.push_back(decoded_column(array, field));
      } catch (const Error& error) {
        throw data_loss(what, ": column \"", field.name, "\": ", error.status().message());
      }
      for (const auto& [row, why] : columns_.back().wrong) wrong_.try_emplace(row, columns_.size() - 1, why);
    }
    decoded_rows_ = static_cast<size_t>(batch->num_rows());
    row_ = packed_begin_ = packed_end_ = std::min(to_leave_out_, decoded_rows_);
    to_leave_out_ -= row_;
    return true;
  }

  // Some of the rows that are decoded.
  void pack_more() {
    packed_begin_ = row_;
    ends_.assign(1, 0);
    while (packed_end_ < decoded_rows_ && ends_.size() <= kMostRowsPacked && ends_.back() < kBytesPacked) {
      size_t bytes = rows_.fixed_bytes();
      for (const DecodedColumn& column : columns_) {
        if (!column.views.empty()) bytes += sizeof(PackedRows::Length) + column.views[packed_end_].size();
      }
      ends_.push_back(ends_.back() + bytes);
      ++packed_end_;
    }
    packed_.resize(ends_.back());
    const size_t rows = packed_end_ - packed_begin_;
    std::vector<size_t> at(ends_.begin(), ends_.end() - 1);
    for (size_t& place : at) place += rows_.fixed_bytes();
    const bool alike = ends_.back() == rows * rows_.fixed_bytes();
    for (size_t f = 0; f < columns_.size(); ++f) {
      const DecodedColumn& column = columns_[f];
      if (rows_.fields()[f].has_length()) {
        for (size_t i = 0; i < rows; ++i) append(column.views[packed_begin_ + i], at[i]);
        continue;
      }
      const size_t bytes = rows_.bytes(f);
      const char* from = column.numbers.at + packed_begin_ * bytes;
      char* const to = packed_.data() + rows_.place(f);
      if (alike) {
        scatter(from, bytes, rows, rows_.fixed_bytes(), to);
      } else if (bytes > 0) {
        for (size_t i = 0; i < rows; ++i) std::memcpy(to + ends_[i], from + i * bytes, bytes);
      }
    }
  }

  void append(std::string_view view, size_t& place) {
    const auto length = static_cast<PackedRows::Length>(view.size());
    std::memcpy(packed_.data() + place, &length, sizeof length);
    if (length > 0) std::memcpy(packed_.data() + place + sizeof length, view.data(), length);
    place += sizeof length + length;
  }

  void throw_if_wrong(size_t row) const {
    const auto found = wrong_.find(row);
    if (found == wrong_.end()) return;
    const auto& [field, why] = found->second;
    throw invalid_argument(where(), ": column \"", rows_.fields()[field].name, "\" ", why);
  }

  const PackedRows rows_;
  ParquetFile file_;
  std::vector<int> leaves_;      // the columns as Parquet numbers them
  std::vector<int64_t> groups_;  // the first row of each row group, and where the last one ends
  size_t group_ = 0;
  int64_t rows_at_once_ = 1;                           // that Arrow decodes
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of the row group
  size_t to_leave_out_ = 0;                            // rows of it, which were given before it was opened again
  std::vector<DecodedColumn> columns_;
  std::map<size_t, std::pair<size_t, const char*>> wrong_;  // rows of them, each with a column and what is wrong
  size_t decoded_rows_ = 0, row_ = 0;                       // and the next one
  size_t packed_begin_ = 0, packed_end_ = 0;                // those of them that are packed
  std::string packed_;
  std::vector<size_t> ends_;  // in it: 0, then of each row
};

}  // namespace

bool has_parquet() { return true; }

std::vector<PackedField> parquet_fields(const std::string& path, const std::vector<ParquetColumn>& columns) {
  const InputFile input(path);
  const ParquetFile file(input);
  std::vector<PackedField> fields;
  for (const ParquetColumn& column : columns) {
    fields.push_back(field_of(file, column.name));
    fields.back().otherwise = column.otherwise;
  }
  if (columns.empty()) {
    for (const auto& field : file.schema().fields()) fields.push_back(field_of(file, field->name()));
  }
  if (fields.empty()) throw invalid_argument(file.where(), ": it has no columns");
  return PackedRows(std::move(fields)).fields();
}

std::unique_ptr<RecordReader> open_parquet(const std::string& path, const std::vector<PackedField>& fields) {
  return std::make_unique<ParquetReader>(path, fields);
}

#else

bool has_parquet() { return false; }

std::vector<PackedField> parquet_fields(const std::string&, const std::vector<ParquetColumn>&) {
  check_has_parquet();
  return {};
}

std::unique_ptr<RecordReader> open_parquet(const std::string&, const std::vector<PackedField>&) {
  check_has_parquet();
  return nullptr;
}

#endif

void check_has_parquet() {
  if (has_parquet()) return;
  throw failed_precondition(
      "parquet: this Muster was built without Apache Arrow; run scripts/setup parquet, or name a pyarrow with "
      "-DMUSTER_PYARROW=<its directory>, then configure and build it again");
}

}  // namespace muster
