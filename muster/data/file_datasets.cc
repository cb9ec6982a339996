// The datasets that are read from files, and what gives names to columns.
#include <algorithm>
#include <charconv>
#include <set>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/data/files/parquet_reader.h"
#include "muster/data/sources/source.h"
#include "muster/data/user_code.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

constexpr int kLinesToLookAt = 100;

Dataset files_dataset(const char* what, FilesOp op) {
  if (op.patterns.empty()) throw invalid_argument(what, ": no files, expected at least one path");
  if (op.cycle < 1 || op.block < 1) {
    throw invalid_argument(what, ": cycle_length ", op.cycle, " and block_length ", op.block, ", expected at least 1");
  }
  for (const std::string& path : op.patterns) {
    if (path.empty()) throw invalid_argument(what, ": an empty path");
  }
  return dataset_of(std::move(op));
}

Parallel checked_parallel(const char* what, Parallel parallel) {
  if (parallel.threads != kAutoThreads && (parallel.threads < 1 || parallel.threads > kMostThreads)) {
    throw invalid_argument(what, ": ", parallel.threads, " threads, expected 1 to ", kMostThreads, ", or kAutoThreads");
  }
  return parallel;
}

Dataset parsed(const char* what, const Dataset& records, RecordContent format, Parallel parallel) {
  ParseOp op{.what = std::move(format),
             .parser = {},
             .ignore_errors = ignores_errors(*records.node()),
             .parallel = checked_parallel(what, parallel)};
  // What was wrong with a packed row is known before it is packed.
  if (std::holds_alternative<std::vector<PackedField>>(op.what)) op.ignore_errors = false;
  op.parser = parser_of(op.what);
  return dataset_of(std::move(op), {records.node()});
}

// Whether the parser would take all of it for one: with blanks around it, and a sign.
template <class Number>
bool is_number(std::string_view field) {
  constexpr std::string_view kBlanks = " \t";
  const size_t first = field.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return false;
  field = field.substr(first, field.find_last_not_of(kBlanks) + 1 - first);
  if (field.starts_with('+')) field.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  return error == std::errc() && end == field.data() + field.size();
}

// What the first lines look like, as tf.data's make_csv_dataset guesses it.
std::vector<CsvColumn> guessed_columns(RecordReader& reader, std::vector<std::string> names,
                                       const CsvOptions& options) {
  std::vector<CsvColumn> columns;
  for (std::string& name : names) {
    columns.push_back({.name = std::move(name), .type = CsvColumn::Type::kInt64, .otherwise = int64_t{0}});
  }
  for (int i = 0; i < kLinesToLookAt; ++i) {
    const std::optional<std::string_view> line = reader.next();
    if (!line) break;
    const std::vector<std::string> fields = csv_fields(*line, options.separator, options.quotes);
    for (size_t place = 0; place < std::min(fields.size(), columns.size()); ++place) {
      const std::string& field = fields[place];
      CsvColumn& column = columns[place];
      if (field.empty() || field == options.na_value) continue;
      if (column.type == CsvColumn::Type::kInt64 && !is_number<int64_t>(field)) {
        column.type = CsvColumn::Type::kFloat;
        column.otherwise = 0.0;
      }
      if (column.type == CsvColumn::Type::kFloat && !is_number<double>(field)) {
        column.type = CsvColumn::Type::kString;
        column.otherwise = std::string();
      }
    }
  }
  return columns;
}

// What is wrong with the header of a file is said with its name.
template <class Look>
void in_file(const std::string& path, const Look& look) {
  try {
    look();
  } catch (const Error& error) {
    throw Error(Status(error.code(), str_cat("file \"", path, "\": ", error.status().message())));
  }
}

// As the first file has them; of those that can be read, if others are left out.
std::vector<PackedField> fields_of_files(const FilesOp& op, const std::vector<ParquetColumn>& columns) {
  std::optional<Error> first;
  for (const std::string& path : record_files(op)) {
    try {
      return parquet_fields(path, columns);
    } catch (const Error& error) {
      const bool is_left_out = error.code() == StatusCode::kDataLoss || error.code() == StatusCode::kNotFound;
      if (!op.ignore_errors || !is_left_out) throw;  // what is wrong with `columns` is so in every file
      if (!first) first.emplace(error);
    }
  }
  throw Error(*first);
}

// Those of these names, in their order.
template <class Some>
std::vector<Some> columns_of(const std::vector<Some>& all, const std::vector<std::string>& names) {
  std::vector<Some> some;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all, name, &Some::name);
    if (found != all.end()) some.push_back(*found);
  }
  return some;
}

// The rows of files with these columns alone, so that nothing else is read of them. Null: `node` is something else.
std::shared_ptr<const DatasetNode> rows_with(const DatasetNode& node, const std::vector<std::string>& names) {
  const auto* parse = std::get_if<ParseOp>(&node.op());
  const auto* files = parse == nullptr ? nullptr : std::get_if<FilesOp>(&node.input().op());
  if (files == nullptr || std::set<std::string>(names.begin(), names.end()).size() != names.size()) return nullptr;
  FilesOp source = *files;
  ParseOp rows = *parse;
  if (auto* csv = std::get_if<CsvFormat>(&rows.what)) {
    csv->columns = columns_of(csv->columns, names);
    if (csv->header.empty() || csv->columns.size() != names.size()) return nullptr;
  } else if (auto* fields = std::get_if<std::vector<PackedField>>(&rows.what)) {
    *fields = columns_of(*fields, names);
    source.format.fields = columns_of(source.format.fields, names);
    if (fields->size() != names.size() || source.format.fields.size() != names.size()) return nullptr;
  } else {
    return nullptr;
  }
  rows.parser = parser_of(rows.what);
  return std::make_shared<const DatasetNode>(std::move(rows), DatasetNode::Inputs{std::make_shared<const DatasetNode>(
                                                                  std::move(source), DatasetNode::Inputs{})});
}

// A dataset that has the values of one column in the order in which `node` has them, be they in other batches of steps
// that look at all columns. Null: the column is made of others, or nothing is won.
std::shared_ptr<const DatasetNode> with_column(const DatasetNode& node, const std::string& column) {
  const auto* preprocess = std::get_if<PreprocessOp>(&node.op());
  const bool of_another = preprocess != nullptr && preprocess->column != column;
  const bool drops = of_another || std::holds_alternative<SelectOp>(node.op());
  const bool keeps = preprocess != nullptr || passes_on(node.op()) || std::holds_alternative<BatchOp>(node.op());
  if (!drops && !keeps) return rows_with(node, {column});
  std::shared_ptr<const DatasetNode> before = with_column(node.input(), column);
  if (drops || before == nullptr) return before;
  return std::make_shared<const DatasetNode>(node.op(), DatasetNode::Inputs{std::move(before)});
}

}  // namespace

Dataset Dataset::tfrecords(Files files, const FileOptions& options) {
  return files_dataset("tfrecords",
                       {.patterns = std::move(files).take(),
                        .format = {.kind = RecordFormat::Kind::kTfRecord, .compression = options.compression},
                        .ignore_errors = options.ignore_errors,
                        .cycle = options.cycle_length,
                        .block = options.block_length});
}

Dataset Dataset::text_lines(Files files, const FileOptions& options) {
  return files_dataset("text_lines",
                       {.patterns = std::move(files).take(),
                        .format = {.kind = RecordFormat::Kind::kLines, .compression = options.compression},
                        .ignore_errors = options.ignore_errors,
                        .cycle = options.cycle_length,
                        .block = options.block_length});
}

Dataset Dataset::fixed_records(Files files, int64_t record_bytes, const FixedRecordOptions& options) {
  if (record_bytes < 1 || options.header_bytes < 0 || options.footer_bytes < 0) {
    throw invalid_argument("fixed_records: records of ", record_bytes, " bytes, a header of ", options.header_bytes,
                           " and a footer of ", options.footer_bytes, "; expected at least 1, 0 and 0");
  }
  return files_dataset("fixed_records", {.patterns = std::move(files).take(),
                                         .format = {.kind = RecordFormat::Kind::kFixed,
                                                    .compression = options.files.compression,
                                                    .record_bytes = record_bytes,
                                                    .header_bytes = options.header_bytes,
                                                    .footer_bytes = options.footer_bytes},
                                         .ignore_errors = options.files.ignore_errors,
                                         .cycle = options.files.cycle_length,
                                         .block = options.files.block_length});
}

Dataset Dataset::csv(Files files, const CsvOptions& options, Parallel parallel) {
  FilesOp op{.patterns = std::move(files).take(),
             .format = {.kind = RecordFormat::Kind::kLines,
                        .compression = options.files.compression,
                        .quoted = options.quotes},
             .ignore_errors = options.files.ignore_errors,
             .cycle = options.files.cycle_length,
             .block = options.files.block_length};
  CsvFormat format{.columns = options.columns,
                   .separator = options.separator,
                   .quotes = options.quotes,
                   .na_value = options.na_value};
  if (op.patterns.empty()) throw invalid_argument("csv: no files, expected at least one path");
  if (options.header || format.columns.empty()) {
    const std::vector<std::string> paths = record_files(op);
    const std::unique_ptr<RecordReader> reader = open_records(paths.at(0), op.format);
    if (options.header) {
      const std::optional<std::string_view> first = reader->next();
      if (!first) throw data_loss("file \"", paths[0], "\": it is empty, expected a header");
      op.header = *first;
      in_file(paths[0], [&] { format.header = csv_fields(op.header, options.separator, options.quotes); });
    }
    if (format.columns.empty()) {
      if (!options.header) throw invalid_argument("csv: without a header, `columns` says what the fields are");
      format.columns = guessed_columns(*reader, format.header, options);
      format.guessed = true;
    }
    in_file(paths[0], [&] { (void)parser_of(format); });  // throws for columns that it does not have
  }
  return parsed("csv", files_dataset("csv", std::move(op)), std::move(format), parallel);
}

Dataset Dataset::parquet(Files files, const ParquetOptions& options, Parallel parallel) {
  check_has_parquet();
  FilesOp op{.patterns = std::move(files).take(),
             .format = {.kind = RecordFormat::Kind::kParquet},
             .ignore_errors = options.files.ignore_errors,
             .cycle = options.files.cycle_length,
             .block = options.files.block_length};
  if (op.patterns.empty()) throw invalid_argument("parquet: no files, expected at least one path");
  if (options.files.compression != Compression::kNone) {
    throw invalid_argument("parquet: a compression, expected none: the files say themselves how they are compressed");
  }
  op.format.fields = fields_of_files(op, options.columns);
  std::vector<PackedField> fields = op.format.fields;
  return parsed("parquet", files_dataset("parquet", std::move(op)), std::move(fields), parallel);
}

Dataset Dataset::numpy(const std::string& file) {
  NumpyOp op{.path = file};
  for (const auto& [name, array] : read_numpy(file)) op.names.push_back(name);
  return dataset_of(std::move(op));
}

Dataset Dataset::image_folder(const std::string& directory) {
  if (directory.empty()) throw invalid_argument("image_folder: an empty path");
  return dataset_of(ImageFolderOp{.directory = directory});
}

Dataset Dataset::decode_images(const std::string& column, const ImageOptions& options, Parallel parallel) const {
  const ImageSteps checked(options.steps);  // throws for what is no step
  return dataset_of(
      DecodeImagesOp{.column = column, .options = options, .parallel = checked_parallel("decode_images", parallel)},
      {node_});
}

Dataset Dataset::concatenate(const std::vector<Dataset>& datasets) {
  if (datasets.empty()) throw invalid_argument("concatenate: no datasets, expected at least one");
  return dataset_of(ConcatenateOp{}, nodes_with_same_columns("concatenate", datasets));
}

Dataset Dataset::parse_examples(std::vector<ExampleFeature> features, Parallel parallel) const {
  return parsed("parse_examples", *this, std::move(features), parallel);
}

Dataset Dataset::parse(std::vector<std::pair<std::string, ExampleFeature>> features, Parallel parallel) const {
  std::vector<ExampleFeature> named;
  for (auto& [name, feature] : features) {
    feature.name = name;
    named.push_back(std::move(feature));
  }
  return parse_examples(std::move(named), parallel);
}

Dataset Dataset::parse_csv(CsvFormat format, Parallel parallel) const {
  return parsed("parse_csv", *this, std::move(format), parallel);
}

Dataset Dataset::select(std::vector<std::string> columns) const {
  if (columns.empty()) throw invalid_argument("select: no columns, expected at least one");
  Dataset selected = dataset_of(SelectOp{.columns = columns}, {node_});  // throws for those that are not there
  const std::shared_ptr<const DatasetNode> rows = rows_with(*node_, columns);
  return rows ? Dataset(rows) : selected;
}

Dataset Dataset::named(std::vector<std::string> columns) const {
  if (columns.empty()) throw invalid_argument("named: no columns, expected at least one");
  for (auto name = columns.begin(); name != columns.end(); ++name) {
    if (std::find(columns.begin(), name, *name) != name) throw invalid_argument("named: two columns \"", *name, "\"");
  }
  return dataset_of(SelectOp{.columns = std::move(columns), .names_all = true}, {node_});
}

Dataset Dataset::labels(const std::vector<std::string>& columns) const {
  if (columns.empty()) throw invalid_argument("labels: no columns, expected at least one");
  std::vector<std::string> all = column_names();
  for (auto name = columns.begin(); name != columns.end(); ++name) {
    if (std::find(columns.begin(), name, *name) != name) throw invalid_argument("labels: \"", *name, "\" twice");
    std::erase(all, *name);
  }
  all.insert(all.end(), columns.begin(), columns.end());  // if there is no such column, the step says so
  return dataset_of(SelectOp{.columns = std::move(all), .labels = columns.size()}, {node_});
}

Dataset Dataset::preprocess(const std::string& column, std::shared_ptr<const Preprocessing> how) const {
  if (!how) throw invalid_argument("preprocess: nothing for column \"", column, "\", expected a layer");
  return dataset_of(PreprocessOp{column, std::move(how)}, {node_});
}

void Dataset::adapt(Adapter& adapter, const std::string& column) const {
  Dataset one = select({column});
  // Which records are left out may depend on the other columns.
  const auto alone = ignores_errors(*node_) ? nullptr : with_column(*node_, column);
  if (alone) one = Dataset(alone);
  const std::atomic<bool> closed{false};
  const std::unique_ptr<Source> source = muster::open(*one.node(), {.runner = local_worker(), .closed = closed});
  const std::string who = str_cat("adapt: column \"", column, "\"");
  while (const std::optional<Columns> element = source->next()) {
    call_user_code(who, [&] { adapter.see(element->at(0)); });
  }
}

std::vector<std::string> Dataset::column_names() const { return node_->names().names; }

}  // namespace muster
