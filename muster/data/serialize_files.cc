#include "muster/data/serialize_files.h"

#include "muster/base/status.h"
#include "muster/data/sources/source.h"

namespace muster {
namespace {

using Wire = proto::Dataset;

template <class Message>
Parallel read_parallel(const char* what, const Message& in) {
  if (in.threads() != kAutoThreads && (in.threads() < 1 || in.threads() > kMostThreads)) {
    throw invalid_argument("dataset: ", what, " by ", in.threads(), " threads, expected 1 to ", kMostThreads);
  }
  return {.threads = in.threads(), .deterministic = !in.unordered()};
}
constexpr size_t kMostPaths = 1'000'000;

void write_values(const std::vector<float>& values, Wire::Values& out) {
  out.mutable_floats()->Add(values.begin(), values.end());
}
void write_values(const std::vector<int64_t>& values, Wire::Values& out) {
  out.mutable_ints()->Add(values.begin(), values.end());
}
void write_values(const std::vector<std::string>& values, Wire::Values& out) {
  for (const std::string& value : values) out.add_strings(value);
}
void write_values(float value, Wire::Values& out) { out.add_floats(value); }
void write_values(double value, Wire::Values& out) { out.add_doubles(value); }
void write_values(int64_t value, Wire::Values& out) { out.add_ints(value); }
void write_values(const std::string& value, Wire::Values& out) { out.add_strings(value); }

// As many as there are, of the kind that there are some of.
std::variant<std::vector<float>, std::vector<int64_t>, std::vector<std::string>> read_many(const Wire::Values& in) {
  if (in.ints_size() > 0) return std::vector<int64_t>(in.ints().begin(), in.ints().end());
  if (in.strings_size() > 0) return std::vector<std::string>(in.strings().begin(), in.strings().end());
  return std::vector<float>(in.floats().begin(), in.floats().end());
}

template <class Number>
std::variant<Number, int64_t, std::string> read_one(const Wire::Values& in) {
  if (in.ints_size() == 1) return in.ints(0);
  if (in.strings_size() == 1) return in.strings(0);
  if (in.floats_size() == 1) return static_cast<Number>(in.floats(0));
  if (in.doubles_size() == 1) return static_cast<Number>(in.doubles(0));
  throw invalid_argument("dataset: a default that is not one value");
}

template <class Kind>
Kind kind_from(int number, Kind last, const char* what) {
  if (number < 0 || number > static_cast<int>(last)) throw invalid_argument("dataset: ", what, " number ", number);
  return static_cast<Kind>(number);
}

void write_feature(const ExampleFeature& feature, Wire::Feature& out) {
  out.set_name(feature.name);
  out.set_kind(static_cast<int>(feature.kind));
  out.set_type(static_cast<int>(feature.type));
  out.mutable_shape()->Add(feature.shape.begin(), feature.shape.end());
  auto write_to = [](Wire::Values& values) { return [&values](const auto& value) { write_values(value, values); }; };
  if (feature.otherwise) std::visit(write_to(*out.mutable_otherwise()), *feature.otherwise);
  if (feature.padding) std::visit(write_to(*out.mutable_padding()), *feature.padding);
  if (feature.most) out.set_most(*feature.most);
  if (feature.weights) out.set_weights(*feature.weights);
  out.set_sequence(feature.sequence);
}

ExampleFeature read_feature(const Wire::Feature& in) {
  ExampleFeature feature{.name = in.name(),
                         .kind = kind_from(in.kind(), ExampleFeature::Kind::kSparse, "a feature of kind"),
                         .type = kind_from(in.type(), ExampleFeature::Type::kString, "a feature of type"),
                         .shape = {in.shape().begin(), in.shape().end()},
                         .sequence = in.sequence()};
  if (in.has_otherwise()) feature.otherwise = read_many(in.otherwise());
  if (in.has_padding()) feature.padding = read_one<float>(in.padding());
  if (in.has_most()) feature.most = in.most();
  if (in.has_weights()) feature.weights = in.weights();
  return feature;
}

void write_csv(const CsvFormat& format, Wire::Csv& out) {
  for (const CsvColumn& column : format.columns) {
    Wire::CsvColumn& written = *out.add_columns();
    written.set_name(column.name);
    written.set_type(static_cast<int>(column.type));
    if (!column.otherwise) continue;
    std::visit([&](const auto& value) { write_values(value, *written.mutable_otherwise()); }, *column.otherwise);
  }
  for (const std::string& name : format.header) out.add_header(name);
  out.set_separator(static_cast<unsigned char>(format.separator));
  out.set_quotes(format.quotes);
  out.set_na_value(format.na_value);
  out.set_guessed(format.guessed);
}

CsvFormat read_csv(const Wire::Csv& in) {
  CsvFormat format{.columns = {},
                   .header = {in.header().begin(), in.header().end()},
                   .separator = static_cast<char>(in.separator()),
                   .quotes = in.quotes(),
                   .na_value = in.na_value(),
                   .guessed = in.guessed()};
  for (const Wire::CsvColumn& column : in.columns()) {
    format.columns.push_back(
        {.name = column.name(), .type = kind_from(column.type(), CsvColumn::Type::kString, "a column of type")});
    if (column.has_otherwise()) format.columns.back().otherwise = read_one<double>(column.otherwise());
  }
  return format;
}

template <class Message>
void write_fields(const std::vector<PackedField>& fields, Message& out) {
  for (const PackedField& field : fields) {
    Wire::PackedField& written = *out.add_fields();
    written.set_name(field.name);
    written.set_type(static_cast<int>(field.type));
    written.mutable_sizes()->Add(field.sizes.begin(), field.sizes.end());
    written.set_varies(field.varies);
    written.set_unit(static_cast<int>(field.unit));
    if (!field.otherwise) continue;
    std::visit([&](const auto& value) { write_values(value, *written.mutable_otherwise()); }, *field.otherwise);
  }
}

template <class Message>
std::vector<PackedField> read_fields(const Message& in) {
  std::vector<PackedField> fields;
  for (const Wire::PackedField& field : in.fields()) {
    fields.push_back({.name = field.name(),
                      .type = kind_from(field.type(), PackedField::Type::kString, "a field of type"),
                      .sizes = {field.sizes().begin(), field.sizes().end()},
                      .varies = field.varies(),
                      .unit = kind_from(field.unit(), PackedField::Unit::kNanoseconds, "a field of unit")});
    if (field.has_otherwise()) fields.back().otherwise = read_one<double>(field.otherwise());
  }
  return fields;
}

void write_part(const FilePart& part, Wire::Shard& out) {
  out.set_shards(part.shards);
  out.set_index(part.index);
}

FilePart read_part(const Wire::Shard& in) {
  if (in.shards() < 1 || in.index() < 0 || in.index() >= in.shards()) {
    throw invalid_argument("dataset: part ", in.index(), " of ", in.shards(), " of the files");
  }
  return {in.shards(), in.index()};
}

}  // namespace

void write_op(const ImageFolderOp& op, proto::Dataset& out) {
  out.mutable_image_folder()->set_directory(op.directory);
  write_part(op.part, *out.mutable_image_folder()->mutable_shard());
}

ImageFolderOp read_op(const proto::Dataset::ImageFolder& in) {
  return {.directory = in.directory(), .part = read_part(in.shard())};
}

void write_op(const DecodeImagesOp& op, proto::Dataset& out) {
  Wire::DecodeImages& images = *out.mutable_decode_images();
  images.set_column(op.column);
  images.set_channels(op.options.decode.channels);
  images.set_scale_to(op.options.decode.scale_to);
  images.set_most_pixels(op.options.decode.most_pixels);
  images.set_fast_transform(op.options.decode.fast_transform);
  for (const ImageStep& step : op.options.steps) {
    Wire::ImageStep& written = *images.add_steps();
    written.set_kind(static_cast<int>(step.kind));
    written.mutable_numbers()->Add(step.numbers.begin(), step.numbers.end());
  }
  if (op.options.seed) images.set_seed(*op.options.seed);
  images.set_threads(op.parallel.threads);
  images.set_unordered(!op.parallel.deterministic);
}

DecodeImagesOp read_op(const proto::Dataset::DecodeImages& in) {
  DecodeImagesOp op{.column = in.column(),
                    .options = {.decode = {.channels = in.channels(),
                                           .scale_to = in.scale_to(),
                                           .most_pixels = in.most_pixels(),
                                           .fast_transform = in.fast_transform()}},
                    .parallel = read_parallel("pictures decoded", in)};
  for (const Wire::ImageStep& step : in.steps()) {
    op.options.steps.push_back(
        {static_cast<ImageStep::Kind>(step.kind()), {step.numbers().begin(), step.numbers().end()}});
  }
  const ImageSteps checked(op.options.steps);  // throws for what is no step
  if (in.has_seed()) op.options.seed = in.seed();
  return op;
}

void write_op(const FilesOp& op, proto::Dataset& out) {
  Wire::Files& files = *out.mutable_files();
  for (const std::string& pattern : op.patterns) files.add_patterns(pattern);
  files.set_kind(static_cast<int>(op.format.kind));
  files.set_compression(static_cast<int>(op.format.compression));
  files.set_record_bytes(op.format.record_bytes);
  files.set_header_bytes(op.format.header_bytes);
  files.set_footer_bytes(op.format.footer_bytes);
  files.set_skip_lines(op.format.skip_lines);
  files.set_quoted(op.format.quoted);
  files.set_header(op.header);
  files.set_ignore_errors(op.ignore_errors);
  write_part(op.part, *files.mutable_shard());
  files.set_cycle(op.cycle);
  files.set_block(op.block);
  write_fields(op.format.fields, files);
}

FilesOp read_op(const proto::Dataset::Files& in) {
  if (in.patterns_size() == 0 || static_cast<size_t>(in.patterns_size()) > kMostPaths) {
    throw invalid_argument("dataset: ", in.patterns_size(), " files, expected at least one");
  }
  if (in.cycle() < 1 || in.block() < 1) {
    throw invalid_argument("dataset: ", in.cycle(), " files at a time, ", in.block(), " records of each in turn");
  }
  // Whatever throws comes first: GCC destroys a member of what it returns twice if a later one throws.
  const auto kind = kind_from(in.kind(), RecordFormat::Kind::kParquet, "files of kind");
  const auto compression = kind_from(in.compression(), Compression::kZlib, "compression");
  const FilePart part = read_part(in.shard());
  std::vector<PackedField> fields = read_fields(in);
  if (!fields.empty()) const PackedRows checked(fields);  // throws for what no row has
  return {.patterns = {in.patterns().begin(), in.patterns().end()},
          .format = {.kind = kind,
                     .compression = compression,
                     .record_bytes = in.record_bytes(),
                     .header_bytes = in.header_bytes(),
                     .footer_bytes = in.footer_bytes(),
                     .skip_lines = in.skip_lines(),
                     .quoted = in.quoted(),
                     .fields = std::move(fields)},
          .header = in.header(),
          .ignore_errors = in.ignore_errors(),
          .part = part,
          .cycle = in.cycle(),
          .block = in.block()};
}

void write_op(const NumpyOp& op, proto::Dataset& out) {
  out.mutable_numpy()->set_path(op.path);
  for (const std::string& name : op.names) out.mutable_numpy()->add_names(name);
}

NumpyOp read_op(const proto::Dataset::Numpy& in) {
  return {.path = in.path(), .names = {in.names().begin(), in.names().end()}};
}

void write_op(const ParseOp& op, proto::Dataset& out) {
  Wire::Parse& parse = *out.mutable_parse();
  if (const auto* features = std::get_if<std::vector<ExampleFeature>>(&op.what)) {
    for (const ExampleFeature& feature : *features) write_feature(feature, *parse.add_features());
  } else if (const auto* csv = std::get_if<CsvFormat>(&op.what)) {
    write_csv(*csv, *parse.mutable_csv());
  } else {
    write_fields(std::get<std::vector<PackedField>>(op.what), parse);
  }
  parse.set_ignore_errors(op.ignore_errors);
  parse.set_threads(op.parallel.threads);
  parse.set_unordered(!op.parallel.deterministic);
}

ParseOp read_op(const proto::Dataset::Parse& in) {
  ParseOp op{.what = {}, .parser = {}, .ignore_errors = in.ignore_errors(), .parallel = read_parallel("a parse", in)};
  if (in.has_csv()) {
    op.what = read_csv(in.csv());
  } else if (in.fields_size() > 0) {
    op.what = read_fields(in);
  } else {
    std::vector<ExampleFeature> features;
    for (const Wire::Feature& feature : in.features()) features.push_back(read_feature(feature));
    op.what = std::move(features);
  }
  op.parser = parser_of(op.what);
  return op;
}

void write_op(const SelectOp& op, proto::Dataset& out) {
  for (const std::string& column : op.columns) out.mutable_select()->add_columns(column);
  out.mutable_select()->set_labels(static_cast<uint32_t>(op.labels));
  out.mutable_select()->set_names_all(op.names_all);
}

SelectOp read_op(const proto::Dataset::Select& in) {
  if (in.columns_size() == 0) throw invalid_argument("dataset: a selection of no columns");
  if (in.labels() > static_cast<uint32_t>(in.columns_size())) {
    throw invalid_argument("dataset: ", in.labels(), " labels of ", in.columns_size(), " columns");
  }
  return {.columns = {in.columns().begin(), in.columns().end()}, .labels = in.labels(), .names_all = in.names_all()};
}

}  // namespace muster
