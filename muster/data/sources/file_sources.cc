// The sources that read files.
#include <glob.h>

#include <algorithm>
#include <span>
#include <type_traits>

#include "muster/base/status.h"
#include "muster/data/files/numpy_file.h"
#include "muster/data/files/packed_rows.h"
#include "muster/data/files/parquet_reader.h"
#include "muster/data/sources/left_out.h"
#include "muster/data/sources/source.h"
#include "muster/io/crc32c.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

// The directory in which it begins to be a pattern, or the file.
std::string fixed_part(const std::string& pattern) {
  const size_t wild = pattern.find_first_of("*?[");
  if (wild == std::string::npos) return pattern;
  const size_t slash = pattern.rfind('/', wild);
  return slash == std::string::npos ? "." : pattern.substr(0, std::max<size_t>(slash, 1));
}

// In order of their names: every task that sees the same files has the same list.
std::vector<std::string> files_of(const std::string& pattern) {
  if (!is_pattern(pattern)) return {pattern};
  glob_t found{};
  const int failed = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (failed == GLOB_NOMATCH || paths.empty()) throw not_found("files \"", pattern, "\": there are none");
  if (failed != 0) throw unavailable("files \"", pattern, "\": the directory cannot be read");
  std::sort(paths.begin(), paths.end());
  return paths;
}

const char* unit_of(RecordFormat::Kind kind) {
  if (kind == RecordFormat::Kind::kParquet) return "row";
  return kind == RecordFormat::Kind::kLines ? "line" : "record";
}

class FilesSource : public Source {
 public:
  FilesSource(const FilesOp& op, const OpenContext& context) : op_(op), context_(context) {
    if (op.format.kind == RecordFormat::Kind::kParquet) check_has_parquet();  // no file would be left but by error
    for (const std::string& path : record_files(op, &context)) files_.push_back({path, unit_of(op.format.kind)});
    if (context_.parts == nullptr) return;
    std::string names;
    for (const RecordFile& file : files_) str_append(names, file.path, "\n");
    context_.parts->set_parts(static_cast<int64_t>(files_.size()), crc32c(std::as_bytes(std::span(names))));
  }

  std::optional<Columns> next() override {
    const std::optional<std::string_view> record = next_record();
    if (!record) return std::nullopt;
    Columns element;
    element.emplace_back(Strings(std::string(*record), {open_[turn_].file, open_[turn_].reader->number()}));
    return element;
  }
  // Lists are not as long in every row: then it takes a parser to say so of one of them.
  bool gives_rows() const override {
    return op_.format.kind == RecordFormat::Kind::kParquet &&
           std::ranges::none_of(op_.format.fields, [](const PackedField& field) { return field.varies; });
  }
  std::optional<Columns> next_rows(int64_t most) override {
    return next_of([&](RecordReader& reader) {
      const bool in_turn = op_.cycle > 1;
      std::optional<Columns> rows = reader.next_columns(in_turn ? std::min(most, op_.block - given_) : most);
      if (rows && in_turn) given_ += rows->at(0).sizes()[0];
      return rows;
    });
  }
  void restart() override {
    open_.clear();
    next_file_ = turn_ = 0;
    given_ = 0;
    if (context_.parts != nullptr) context_.parts->begin_round();
  }
  int64_t drained() const override {
    if (context_.parts == nullptr) return 0;
    int64_t first_open = given_out_;
    for (const Open& open : open_) {
      if (open.reader) first_open = std::min(first_open, open.part);
    }
    return first_open;
  }
  bool skip(int64_t count) override {
    while (count > 0 && next_record()) --count;
    return count == 0;
  }

 private:
  // A file that is read in turn with others. No reader: it has ended.
  struct Open {
    const RecordFile* file = nullptr;
    std::unique_ptr<RecordReader> reader{};
    int64_t part = 0;  // among those that were handed out
  };

  // The next file that nobody has read, here or elsewhere.
  const RecordFile* next_file() {
    if (context_.parts == nullptr) return next_file_ < files_.size() ? &files_[next_file_++] : nullptr;
    if (next_file_ == files_.size()) return nullptr;  // as far as this round goes
    const std::optional<int64_t> part = context_.next_part();
    if (!part) {
      next_file_ = files_.size();
      return nullptr;
    }
    ++given_out_;
    return &files_.at(static_cast<size_t>(*part));
  }

  std::optional<std::string_view> next_record() {
    return next_of([&](RecordReader& reader) {
      const std::optional<std::string_view> record = reader.next();
      if (record) ++given_;
      return record;
    });
  }

  // What `take` takes of a reader. As tf.data interleaves: a block of each in turn, and a file that has ended gives its
  // place to the next one.
  template <class Take>
  std::invoke_result_t<Take, RecordReader&> next_of(const Take& take) {
    while (true) {
      if (given_ == op_.block) pass_on();
      if (!has_reader()) return std::nullopt;
      try {
        if (auto taken = take(*open_[turn_].reader)) return taken;
        open_[turn_].reader = nullptr;
        given_ = op_.block;
      } catch (const Error& error) {
        if (!op_.ignore_errors || error.code() == StatusCode::kCancelled) throw;
        left_out_.add(error);
      }
    }
  }

  // Opens the file at this place of the cycle, if there is one more; takes places out that stay empty.
  bool has_reader() {
    const size_t cycle = std::min(static_cast<size_t>(op_.cycle), files_.size());
    while (open_.size() < cycle && next_file_ < files_.size()) open_.emplace_back();
    while (!open_.empty()) {
      Open& place = open_[turn_];
      while (!place.reader) {
        context_.check_open();
        const RecordFile* const file = next_file();
        if (file == nullptr) break;
        place.file = file;
        place.part = given_out_ - 1;
        try {
          place.reader = open_file(place.file->path);
        } catch (const Error& error) {
          if (!op_.ignore_errors) throw;
          left_out_.add(error);
        }
      }
      if (place.reader) return true;
      open_.erase(open_.begin() + static_cast<ptrdiff_t>(turn_));
      if (turn_ >= open_.size()) turn_ = 0;
      given_ = 0;
    }
    return false;
  }

  void pass_on() {
    given_ = 0;
    if (!open_.empty()) turn_ = (turn_ + 1) % open_.size();
  }

  std::unique_ptr<RecordReader> open_file(const std::string& path) const {
    std::unique_ptr<RecordReader> reader = open_records(path, op_.format);
    if (op_.header.empty()) return reader;
    const std::optional<std::string_view> first = reader->next();
    if (!first) throw data_loss("file \"", path, "\": it is empty, expected the header ", op_.header);
    if (*first != op_.header) {
      throw invalid_argument("file \"", path, "\": its header is ", first->substr(0, 200),
                             ", expected that of the first file: ", op_.header);
    }
    return reader;
  }

  const FilesOp op_;
  const OpenContext context_;
  std::vector<RecordFile> files_;
  size_t next_file_ = 0;
  int64_t given_out_ = 0;  // parts that this has got, in all rounds
  std::vector<Open> open_;
  size_t turn_ = 0;    // among them
  int64_t given_ = 0;  // of its block
  LeftOut left_out_{"read", /*quiet=*/context_.example, "records, parts of files or files"};
};

std::vector<std::string_view> views_of(const Strings& records) {
  std::vector<std::string_view> views(records.count());
  for (size_t i = 0; i < views.size(); ++i) views[i] = records[i];
  return views;
}

// The parsers know nothing of origins but how to ask for them.
template <class Parser>
class ParserOf : public RecordParser {
 public:
  explicit ParserOf(Parser parser) : parser_(std::move(parser)) {}
  std::vector<std::string> names() const override { return parser_.names(); }
  Columns parse(const Strings& records, std::optional<size_t>* wrong) const override {
    return parser_.parse(views_of(records), [&](size_t i) {
      if (wrong != nullptr) *wrong = i;
      RecordOrigin origin = records.origin(i);
      if (origin.file == nullptr) origin.number = static_cast<int64_t>(i);
      return origin.to_string();
    });
  }

 private:
  const Parser parser_;
};

class ExampleRecords : public ParserOf<ExampleParser> {
 public:
  explicit ExampleRecords(const std::vector<ExampleFeature>& features) : ParserOf(ExampleParser(features)) {
    for (const ExampleFeature& feature : features) {
      if (feature.kind != ExampleFeature::Kind::kSparse) continue;
      flat_.push_back(feature.name);
      flat_.push_back(feature.name + "/weights");
    }
    names_ = names();
  }
  bool has_rows(size_t column) const override { return std::ranges::find(flat_, names_[column]) == flat_.end(); }

 private:
  std::vector<std::string> flat_, names_;
};

class ConcatenateSource : public Source {
 public:
  ConcatenateSource(std::vector<std::unique_ptr<Source>> inputs, std::vector<std::string> names)
      : inputs_(std::move(inputs)), names_(std::move(names)) {}
  std::optional<Columns> next() override {
    for (; at_ < inputs_.size(); ++at_, at_first_ = true) {
      if (std::optional<Columns> element = inputs_[at_]->next()) {
        if (std::exchange(at_first_, false)) check(*element);
        return element;
      }
    }
    return std::nullopt;
  }
  void restart() override {
    at_ = 0;
    at_first_ = true;
    for (const auto& input : inputs_) input->restart();
  }

 private:
  static std::string type_of(const Column& column) {
    return column.holds_strings() ? "strings" : std::string(name_of(dtype_of(column.tensor().scalar_type())));
  }
  // Whoever takes the elements takes those of one dataset for those of another.
  void check(const Columns& element) {
    std::vector<std::string> types;
    for (const Column& column : element) types.push_back(type_of(column));
    if (types_.empty()) types_ = types;
    if (types.size() != types_.size()) {
      throw invalid_argument("concatenate: an element of dataset ", at_, " has ", types.size(),
                             " columns, but those before have ", types_.size());
    }
    const auto [other, before] = std::ranges::mismatch(types, types_);
    if (other == types.end()) return;
    const auto place = static_cast<size_t>(other - types.begin());
    throw invalid_argument("concatenate: column ",
                           place < names_.size() ? str_cat("\"", names_[place], "\"") : str_cat(place), " of dataset ",
                           at_, " is ", *other, ", but that of those before is ", *before);
  }

  const std::vector<std::unique_ptr<Source>> inputs_;
  const std::vector<std::string> names_;
  std::vector<std::string> types_;  // of the columns of the first element
  size_t at_ = 0;
  bool at_first_ = true;  // of inputs_[at_]
};

}  // namespace

std::vector<std::string> record_files(const FilesOp& op, const OpenContext* context) {
  std::vector<std::string> all, mine;
  for (const std::string& pattern : op.patterns) {
    if (context != nullptr) context->check_readable(fixed_part(pattern));
    std::vector<std::string> some = files_of(pattern);
    for (const std::string& path : some) {
      if (context != nullptr) context->check_readable(path);  // it may be a link
    }
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  for (auto i = static_cast<size_t>(op.part.index); i < all.size(); i += static_cast<size_t>(op.part.shards))
    mine.push_back(all[i]);
  return mine;
}

std::vector<std::pair<std::string, at::Tensor>> read_numpy(const std::string& path) {
  PlainTensors plain;
  if (path.ends_with(".npz")) return read_npz(path);
  return {{"array", read_npy(path)}};
}

std::shared_ptr<const RecordParser> parser_of(const RecordContent& what) {
  if (const auto* features = std::get_if<0>(&what)) return std::make_shared<ExampleRecords>(*features);
  if (const auto* fields = std::get_if<2>(&what)) return std::make_shared<ParserOf<PackedRows>>(PackedRows(*fields));
  return std::make_shared<ParserOf<CsvParser>>(CsvParser(std::get<1>(what)));
}

std::unique_ptr<Source> open_op(const FilesOp& op, const OpenContext& context) {
  return std::make_unique<FilesSource>(op, context);
}

std::unique_ptr<Source> open_concatenate(std::vector<std::unique_ptr<Source>> inputs, std::vector<std::string> names) {
  return std::make_unique<ConcatenateSource>(std::move(inputs), std::move(names));
}

}  // namespace muster
