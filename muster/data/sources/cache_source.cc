// Elements that are kept in a file from the first whole round on.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/dataset.pb.h"
#include "muster/data/files/record_reader.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/serialize_columns.h"
#include "muster/data/sources/source.h"
#include "muster/io/file_error.h"
#include "muster/io/output_file.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

// The file has TFRecord's frames, whose sums are checked: one record that says of which dataset it is, the elements,
// and one that says how many there are.
constexpr char kHead = 'h', kElement = 'e', kEnd = 'z';
constexpr std::string_view kFormat = "muster dataset cache 1 ";

std::string cached_element(const Columns& element) {
  proto::Dataset::Columns message;
  for (const Column& column : element) write_column(column, *message.add_columns());
  std::string record(1, kElement);
  if (!message.AppendToString(&record)) throw invalid_argument("cache: an element of 2 GiB or more");
  return record;
}

Columns cached_columns(std::string_view bytes) {
  proto::Dataset::Columns message;
  if (bytes.size() > std::numeric_limits<int>::max() ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || message.columns_size() > kMostColumns) {
    throw invalid_argument("it is no element");
  }
  Columns element;
  for (const auto& column : message.columns()) element.push_back(read_column(column));
  return element;
}

// Gives the elements of a complete file. Throws Error{kDataLoss} for one that is damaged and Error{kFailedPrecondition}
// for one of another dataset.
class CacheReader {
 public:
  CacheReader(const std::string& path, std::string_view dataset)
      : path_(path), records_(open_records(path, {.kind = RecordFormat::Kind::kTfRecord})) {
    const std::optional<std::string_view> head = records_->next();
    if (!head || head->empty() || head->front() != kHead || !head->substr(1).starts_with(kFormat)) {
      throw data_loss("file \"", path_, "\": it is no cache of a dataset");
    }
    if (head->substr(1 + kFormat.size()) != dataset) {
      throw failed_precondition("file \"", path_,
                                "\": it is the cache of another dataset; remove it if this one has changed, "
                                "or give each its own file");
    }
  }

  std::optional<Columns> next() {
    if (ended_) return std::nullopt;
    const std::optional<std::string_view> record = records_->next();
    if (!record) throw damaged("it ends before its end");
    if (!record->empty() && record->front() == kElement) {
      try {
        Columns element = cached_columns(record->substr(1));
        ++count_;
        return element;
      } catch (const Error& error) {
        throw damaged(error.status().message());
      }
    }
    if (*record != str_cat(std::string(1, kEnd), count_) || records_->next())
      throw damaged("it has another end than its own");
    ended_ = true;
    return std::nullopt;
  }

 private:
  Error damaged(const std::string& why) const {
    return data_loss("file \"", path_, "\": after ", count_, " elements of a dataset's cache: ", why, "; remove it");
  }

  const std::string path_;
  const std::unique_ptr<RecordReader> records_;
  int64_t count_ = 0;
  bool ended_ = false;
};

// Writes beside the file and becomes it when all is there. Others may do so at the same time: the first one stays.
class CacheWriter {
 public:
  CacheWriter(const std::string& path, std::string_view dataset) : path_(path), records_(incomplete(path)) {
    records_.write(str_cat(std::string(1, kHead), kFormat, dataset));
  }

  void add(const Columns& element) { records_.write(cached_element(element)); }
  void publish() {
    records_.write(str_cat(std::string(1, kEnd), records_.count() - 1));
    records_.close();
    // Not rename, which would replace what is there, be it somebody's only copy of something else.
    int failure = ::link(records_.path().c_str(), path_.c_str()) == 0 ? 0 : errno;
    const bool no_links = failure == EPERM || failure == EOPNOTSUPP;  // on this file system
    if (no_links && !std::filesystem::exists(path_)) {
      failure = ::rename(records_.path().c_str(), path_.c_str()) == 0 ? 0 : errno;
    }
    ::unlink(records_.path().c_str());
    if (failure != 0 && failure != EEXIST) throw file_error(path_, "link", failure);
    sync_directory(std::filesystem::absolute(path_).parent_path().string());
  }

 private:
  // Of the one that will be there, if there is no place for it.
  static std::string incomplete(const std::string& path) {
    const std::filesystem::path directory = std::filesystem::absolute(path).parent_path();
    std::error_code error;
    if (!std::filesystem::is_directory(directory, error)) {
      throw not_found("cache \"", path, "\": there is no directory \"", directory.string(), "\"");
    }
    return str_cat(path, ".", random_id(), ".incomplete");
  }

  const std::string path_;
  TfRecordWriter records_;
};

class FileCacheSource : public Source {
 public:
  FileCacheSource(const CacheOp& op, std::string dataset, const DatasetNode& before, const OpenContext& context)
      : path_(op.path), dataset_(std::move(dataset)), before_(before), context_(context), seed_(context.fresh_seed()) {
    context_.left_out = nullptr;  // no step before a cache comes after a batch behind it
    context_.next_seed = &seed_;
    begin();
  }

  std::optional<Columns> next() override {
    if (reader_) return reader_->next();
    if (ended_) return std::nullopt;
    std::optional<Columns> element;
    try {
      element = input().next();
    } catch (...) {
      writer_ = nullptr;  // without this element it is not whole
      throw;
    }
    if (element) {
      if (writer_) write(*element);
      return element;
    }
    ended_ = true;
    if (writer_) {
      const std::unique_ptr<CacheWriter> whole = std::move(writer_);
      whole->publish();
    }
    return std::nullopt;
  }
  void restart() override { begin(); }

 private:
  void begin() {
    reader_ = nullptr;
    writer_ = nullptr;
    ended_ = false;
    if (std::filesystem::exists(path_)) {
      reader_ = std::make_unique<CacheReader>(path_, dataset_);
      input_ = nullptr;
      return;
    }
    writer_ = std::make_unique<CacheWriter>(path_, dataset_);
    if (input_) input_->restart();
  }
  // Not before it is needed: it may have threads that read ahead, or files that are gone.
  Source& input() {
    if (!input_) input_ = muster::open(before_, context_);
    return *input_;
  }
  void write(const Columns& element) {
    try {
      writer_->add(element);
    } catch (...) {
      writer_ = nullptr;
      throw;
    }
  }

  const std::string path_;
  const std::string dataset_;
  const DatasetNode& before_;
  OpenContext context_;
  uint64_t seed_;  // what is behind it draws the same, whether there is a file or not
  std::unique_ptr<Source> input_;
  // One of them, unless an element could not be made or written in this round.
  std::unique_ptr<CacheReader> reader_;
  std::unique_ptr<CacheWriter> writer_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Source> open_file_cache(const CacheOp& op, const DatasetNode& before, const OpenContext& context) {
  context.check_writable(op.path);
  return std::make_unique<FileCacheSource>(op, fingerprint(before), before, context);
}

}  // namespace muster
