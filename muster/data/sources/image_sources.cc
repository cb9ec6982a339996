// The sources of pictures.
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "muster/base/status.h"
#include "muster/data/sources/source.h"
#include "muster/io/input_file.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/splitmix.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostFileBytes = int64_t{1} << 30;

struct ImageFile {
  RecordFile file;
  int64_t label = 0;
};

std::vector<fs::path> sorted_entries(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) throw not_found("image_folder \"", directory.string(), "\": ", error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

// Those of each folder after each other, by name; every n-th of them.
std::vector<ImageFile> pictures_of(const ImageFolderOp& op, const OpenContext& context) {
  context.check_readable(op.directory);
  std::vector<ImageFile> all;
  int64_t label = 0, number = 0;
  for (const fs::path& folder : sorted_entries(op.directory)) {
    if (!fs::is_directory(folder)) continue;
    for (const fs::path& path : sorted_entries(folder)) {
      if (!is_picture(path)) continue;
      if (number++ % op.part.shards == op.part.index) all.push_back({{path.string(), "picture"}, label});
    }
    ++label;
  }
  if (number == 0) {
    throw not_found("image_folder \"", op.directory,
                    "\": no pictures; expected a folder for each class, with .png, .jpg or .jpeg files in it");
  }
  return all;
}

std::string read_whole(const std::string& path) {
  const InputFile file(path);
  if (file.size() > kMostFileBytes)
    throw invalid_argument("file \"", path, "\": ", file.size(), " bytes is no picture");
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

class ImageFolderSource : public Source {
 public:
  ImageFolderSource(const ImageFolderOp& op, const OpenContext& context)
      : context_(context), files_(pictures_of(op, context)) {}

  std::optional<Columns> next() override {
    if (next_ == files_.size()) return std::nullopt;
    context_.check_open();
    const ImageFile& file = files_[next_++];
    context_.check_readable(file.file.path);  // it may be a link
    PlainTensors plain;
    Columns element;
    element.emplace_back(Strings(read_whole(file.file.path), {&file.file, 0}));
    element.emplace_back(at::scalar_tensor(file.label, at::TensorOptions(at::kLong)));
    return element;
  }
  void restart() override { next_ = 0; }
  std::optional<int64_t> length() const override { return static_cast<int64_t>(files_.size()); }
  bool skip(int64_t count) override {
    const bool enough = static_cast<uint64_t>(count) <= files_.size() - next_;
    next_ = enough ? next_ + static_cast<size_t>(count) : files_.size();
    return enough;
  }

 private:
  const OpenContext context_;
  const std::vector<ImageFile> files_;
  size_t next_ = 0;
};

// Gives each element a number, so that threads draw the same whoever takes it.
class NumberedElements : public Source {
 public:
  explicit NumberedElements(std::unique_ptr<Source> input) : input_(std::move(input)) {}
  std::optional<Columns> next() override {
    std::optional<Columns> element = input_->next();
    if (!element) return std::nullopt;
    PlainTensors plain;
    element->emplace_back(at::scalar_tensor(number_++, at::TensorOptions(at::kLong)));
    return element;
  }
  void restart() override { input_->restart(); }  // goes on counting: other pictures in each round
  int64_t drained() const override { return input_->drained(); }
  int64_t fast_forward(int64_t count) override {
    number_ += count;
    return input_->fast_forward(count);
  }

 private:
  const std::unique_ptr<Source> input_;
  int64_t number_ = 0;
};

at::Tensor decoded(const Column& column, const DecodeOptions& options, const ImageSteps& steps, uint64_t seed) {
  if (!column.holds_strings() || !column.sizes().empty()) {
    throw invalid_argument("decode_images: a column is ", column.to_string(),
                           ", expected the bytes of one picture; do it before batch");
  }
  try {
    return steps.decode(column.strings()[0], options, seed);
  } catch (const Error& error) {
    const RecordOrigin origin = column.strings().origin(0);
    if (origin.file == nullptr) throw;
    throw Error(Status(error.code(), str_cat("file \"", origin.file->path, "\": ", error.status().message())));
  }
}

}  // namespace

std::unique_ptr<Source> open_op(const ImageFolderOp& op, const OpenContext& context) {
  return std::make_unique<ImageFolderSource>(op, context);
}

std::unique_ptr<Source> open_decode(const DecodeImagesOp& op, size_t column, std::unique_ptr<Source> input,
                                    const OpenContext& context) {
  const uint64_t seed = op.options.seed ? *op.options.seed : context.fresh_seed();
  auto change = [=, decode = op.options.decode, steps = ImageSteps(op.options.steps)](Columns element) {
    PlainTensors plain;
    const MemoryPool::Use pool(true);  // the next picture is as large
    const auto number = element.back().tensor().item().toLong();
    element.pop_back();
    element.at(column) =
        decoded(element.at(column), decode, steps, SplitMix{seed + SplitMix::kStep * static_cast<uint64_t>(number)}());
    return element;
  };
  return open_change(std::move(change), op.parallel, std::make_unique<NumberedElements>(std::move(input)), context);
}

}  // namespace muster
