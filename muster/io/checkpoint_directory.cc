#include "muster/io/checkpoint_directory.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/io/file_error.h"
#include "muster/io/mapped_file.h"
#include "muster/io/output_file.h"
#include "muster/io/safetensors.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ckpt-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";

std::string temporary_path(const std::string& directory, int64_t step) {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return str_cat(directory, "/", kTemporaryPrefix, step, "-", absl::StrFormat("%016x", number));
}

// A descriptor that holds the lock of a directory until it is closed, also by a kill. Nothing when another holds it,
// when the file system has no locks, and when the directory went away meanwhile.
std::optional<int> lock_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  struct stat locked;
  struct stat named;
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &locked) == 0 && stat(path.c_str(), &named) == 0 &&
      locked.st_ino == named.st_ino) {
    return descriptor;
  }
  close(descriptor);
  return std::nullopt;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void remove_tree(const std::string& path) {
  std::error_code ignored;  // what is left over is removed by a later keep()
  fs::remove_all(path, ignored);
}

// The names in a directory; none when there is no directory.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) throw file_error(path, "list", error.value());
  return names;
}

int64_t size_of(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    const Error error = file_error(path, "stat", errno);
    if (error.code() != StatusCode::kNotFound) throw error;
    throw data_loss(error.status().message());
  }
  return found.st_size;
}

std::string file_of(std::string_view task) {
  std::string name(task.substr(std::min(task.find_first_not_of('/'), task.size())));
  if (name.empty()) throw invalid_argument("checkpoint: a task without a name cannot store");
  for (char& c : name) {
    const bool kept =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '.';
    if (!kept) c = '-';
  }
  return str_cat("shard-", name, ".safetensors");
}

// What makes a checkpoint complete. Throws an Error that says what is not.
CheckpointIndex complete_index(const std::string& path, int64_t step) {
  CheckpointIndex index = read_checkpoint_index(path);
  if (index.step != step) throw data_loss("checkpoint \"", path, "\": its index is of step ", index.step);
  for (const auto& [file, bytes] : index.files) {
    const std::string name = str_cat(path, "/", file);
    if (const int64_t size = size_of(name); size != bytes) {
      throw data_loss("file \"", name, "\": ", size, " bytes, expected ", bytes);
    }
  }
  return index;
}

// Nothing when it is complete.
std::optional<Status> damage_of(const std::string& path, int64_t step) {
  try {
    complete_index(path, step);
    return std::nullopt;
  } catch (const Error& error) {
    return error.status();
  }
}

// Fills in the sizes, and checks that every slice is where its entry says. The data itself is not read again.
void take_stock(const std::string& directory, CheckpointIndex& index) {
  if (auto complaint = complaint_about(index)) {
    throw invalid_argument("checkpoint of step ", index.step, ": ", *complaint);
  }
  index.files.clear();
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  for (const ShardEntry& entry : index.entries) {
    const std::string path = str_cat(directory, "/", entry.file);
    auto& file = files[entry.file];
    if (!file) {
      file = std::make_unique<SafetensorsFile>(path);
      index.files[entry.file] = size_of(path);
    }
    const std::string name = entry.tensor_name();
    if (!file->has(name) || file->spec(name) != entry.spec) {
      throw data_loss("file \"", path, "\": expected tensor \"", name, "\" as ", entry.spec.to_string());
    }
  }
}

}  // namespace

std::vector<ShardEntry> write_shard(const std::string& temporary, std::string_view task,
                                    const std::vector<Slice>& slices) {
  const std::string file = file_of(task);
  std::vector<const Slice*> sorted;
  for (const Slice& slice : slices) sorted.push_back(&slice);
  // Falling element sizes keep every tensor aligned in the file.
  std::stable_sort(sorted.begin(), sorted.end(), [](const Slice* a, const Slice* b) {
    return bytes_per_element(a->spec.dtype) > bytes_per_element(b->spec.dtype);
  });
  std::vector<ShardEntry> entries;
  std::vector<NamedSpec> tensors;
  for (const Slice* slice : sorted) {
    const ShardEntry& entry =
        entries.emplace_back(ShardEntry{slice->variable, slice->spec, slice->full_sizes, slice->row_offset, file, 0});
    if (auto complaint = complaint_about(entry)) throw invalid_argument("checkpoint: ", *complaint);
    tensors.push_back({entry.tensor_name(), entry.spec});
  }
  if (entries.empty()) return entries;
  // By "pt" Python knows that these are tensors of PyTorch.
  SafetensorsWriter writer(str_cat(temporary, "/", file), std::move(tensors), {{"format", "pt"}});
  for (size_t i = 0; i < entries.size(); ++i) entries[i].crc = writer.write(entries[i].tensor_name(), sorted[i]->bytes);
  writer.finish();
  return entries;
}

CheckpointDirectory::CheckpointDirectory(std::string path) : path_(std::move(path)) {
  if (path_.empty()) throw invalid_argument("checkpoint: expected the path of a directory, got \"\"");
}

CheckpointDirectory::~CheckpointDirectory() {
  for (const auto& [path, begun] : begun_) {
    if (begun.lock >= 0) close(begun.lock);
  }
}

std::string CheckpointDirectory::begin(int64_t step) {
  if (step < 0) throw invalid_argument("checkpoint: step ", step, " is negative");
  std::error_code error;
  const fs::path absolute = fs::absolute(path_);
  if (fs::create_directories(absolute, error)) sync_directory(absolute.parent_path().string());
  if (error) throw file_error(path_, "create", error.value());
  // A second try: between its making and its lock, somebody's keep() may take the directory for a dead one's.
  for (int tries = 0;; ++tries) {
    const std::string temporary = temporary_path(path_, step);
    if (mkdir(temporary.c_str(), 0777) != 0) throw file_error(temporary, "create", errno);
    auto lock = lock_directory(temporary);
    if (!lock && tries < 3) {
      remove_tree(temporary);
      continue;
    }
    absl::MutexLock hold(&mu_);
    begun_.emplace(temporary, Begun{step, lock.value_or(-1)});
    return temporary;
  }
}

std::string CheckpointDirectory::commit(const std::string& temporary, CheckpointIndex index) {
  if (const int64_t step = begun(temporary).step; step != index.step) {
    throw invalid_argument("checkpoint \"", temporary, "\": begun for step ", step, ", got the index of ", index.step);
  }
  const std::string path = path_of(index.step);
  take_stock(temporary, index);
  if (exists(path)) {
    // One of a later version, or one that we may not read, is not damaged.
    const auto damage = damage_of(path, index.step);
    if (!damage || damage->code() != StatusCode::kDataLoss) {
      throw already_exists("checkpoint \"", path, "\": there is one already");
    }
    remove(index.step);
  }
  const std::string text = to_json(index);
  const std::string index_path = str_cat(temporary, "/", kIndexFile);
  OutputFile file(index_path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  try {
    sync_directory(temporary);  // the tasks have synced what is in their files
    if (std::rename(temporary.c_str(), path.c_str()) != 0) throw file_error(path, "rename", errno);
  } catch (...) {
    unlink(index_path.c_str());
    throw;
  }
  end(temporary);
  sync_directory(path_);
  return path;
}

void CheckpointDirectory::abandon(const std::string& temporary) {
  begun(temporary);
  remove_tree(temporary);
  end(temporary);
}

std::optional<Checkpoint> CheckpointDirectory::latest() const {
  const auto steps = this->steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = path_of(*step);
    const auto damage = damage_of(path, *step);
    if (!damage) return Checkpoint{*step, path};
    MUSTER_LOG(warning) << "checkpoint " << path << " is damaged and not used: " << damage->message();
  }
  return std::nullopt;
}

std::vector<Checkpoint> CheckpointDirectory::all() const {
  std::vector<Checkpoint> complete;
  for (int64_t step : steps()) {
    if (!damage_of(path_of(step), step)) complete.push_back({step, path_of(step)});
  }
  return complete;
}

CheckpointIndex CheckpointDirectory::index(int64_t step) const {
  if (!exists(path_of(step))) throw not_found("checkpoint \"", path_of(step), "\": there is none");
  return complete_index(path_of(step), step);
}

void CheckpointDirectory::keep(int count) {
  if (count < 1) throw invalid_argument("checkpoint \"", path_, "\": expected to keep at least 1, got ", count);
  const auto complete = all();
  if (complete.size() > static_cast<size_t>(count)) {
    const int64_t oldest = complete[complete.size() - count].step;
    for (int64_t step : steps()) {
      if (step < oldest) remove(step);
    }
  }
  for (const std::string& name : names_in(path_)) {
    if (!name.starts_with(kTemporaryPrefix)) continue;
    const std::string temporary = str_cat(path_, "/", name);
    if (auto lock = lock_directory(temporary)) {  // nobody writes there
      remove_tree(temporary);
      close(*lock);
    }
  }
}

void CheckpointDirectory::remove(int64_t step) {
  // First the name, so that a kill does not leave half a checkpoint under it.
  const std::string path = path_of(step);
  const std::string temporary = temporary_path(path_, step);
  if (std::rename(path.c_str(), temporary.c_str()) != 0) {
    if (errno == ENOENT) return;
    throw file_error(path, "rename", errno);
  }
  remove_tree(temporary);
}

std::string CheckpointDirectory::path_of(int64_t step) const { return str_cat(path_, "/", kPrefix, step); }

std::vector<int64_t> CheckpointDirectory::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(path_)) {
    int64_t step = 0;
    if (!name.starts_with(kPrefix) || !absl::SimpleAtoi(name.substr(kPrefix.size()), &step)) continue;
    if (step >= 0 && name == str_cat(kPrefix, step)) steps.push_back(step);  // not ckpt-007
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointDirectory::Begun CheckpointDirectory::begun(const std::string& temporary) const {
  absl::MutexLock hold(&mu_);
  const auto it = begun_.find(temporary);
  if (it == begun_.end()) throw invalid_argument("checkpoint \"", temporary, "\": not begun here, or ended");
  return it->second;
}

void CheckpointDirectory::end(const std::string& temporary) {
  absl::MutexLock hold(&mu_);
  const auto it = begun_.find(temporary);
  if (it->second.lock >= 0) close(it->second.lock);
  begun_.erase(it);
}

CheckpointIndex read_checkpoint_index(const std::string& path) {
  const std::string name = str_cat(path, "/", kIndexFile);
  try {
    const MappedFile file(name);
    const auto bytes = file.bytes();
    return checkpoint_index_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                      str_cat("file \"", name, "\""));
  } catch (const Error& error) {
    // A checkpoint without an index is damaged; only one without a directory is not there.
    if (error.code() != StatusCode::kNotFound || !exists(path)) throw;
    throw data_loss(error.status().message());
  }
}

}  // namespace muster
