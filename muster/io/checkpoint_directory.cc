#include "muster/io/checkpoint_directory.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/disk.h"
#include "muster/io/file_error.h"
#include "muster/io/input_file.h"
#include "muster/io/output_file.h"
#include "muster/io/remains.h"
#include "muster/io/safetensors.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ckpt-";
constexpr int64_t kLargestStep = int64_t{1} << 62;  // whoever counts on from it has numbers left
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kRemovedPrefix = ".old-";  // nobody needs it
constexpr std::string_view kDamagedSuffix = ".damaged-";

std::string new_number() {
  std::random_device random;
  return absl::StrFormat("%016x", uint64_t{random()} << 32 | random());
}

std::string temporary_path(const std::string& directory, int64_t step) {
  return str_cat(directory, "/", kTemporaryPrefix, step, "-", new_number());
}

std::string removed_path(const std::string& directory) { return str_cat(directory, "/", kRemovedPrefix, new_number()); }

bool exists(const std::string& path) {
  struct stat found;
  if (disk::repeated({}, [&] { return disk::stat(path, &found); }) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw file_error(path, "stat", errno);
}

// Tells whether a name is that of the same directory as before.
ino_t number_of(const std::string& path) {
  struct stat found;
  if (disk::repeated({}, [&] { return disk::stat(path, &found); }) == 0) return found.st_ino;
  throw file_error(path, "stat", errno);
}

void rename_directory(const std::string& from, const std::string& to) {
  int calls = 0;
  const int result = disk::repeated({}, [&] {
    ++calls;
    return disk::rename(from, to);
  });
  if (result == 0) return;
  const int error = errno;
  // The server of a network disk may have done what it was asked before its answer was lost.
  if (calls > 1 && error == ENOENT && !exists(from) && exists(to)) return;
  if (error == ENOTEMPTY || error == EEXIST) {
    throw already_exists("checkpoint \"", to,
                         "\": somebody else has just written one; expected a directory of its own for each training");
  }
  throw file_error(to, "rename", error);
}

// The names in a directory; none when there is no directory.
std::vector<std::string> names_in(const std::string& path) {
  disk::Patience patience;
  while (true) {
    std::vector<std::string> names;
    std::error_code error;
    if (disk::list(path) != 0) error = std::error_code(errno, std::generic_category());
    if (!error) {
      for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
        names.push_back(it->path().filename().string());
      }
    }
    if (!error) return names;
    if (error == std::errc::no_such_file_or_directory) return {};
    if (!disk::may_pass(error.value()) || !patience.wait()) throw file_error(path, "list", error.value());
  }
}

int64_t size_of(const std::string& path, disk::Patience patience = {}) {
  struct stat found;
  if (disk::repeated(patience, [&] { return disk::stat(path, &found); }) != 0) {
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

CheckpointIndex read_index(const std::string& path, bool patient) {
  constexpr int64_t kMaxIndexBytes = 100'000'000;  // as many as a safetensors header
  const std::string name = str_cat(path, "/", kIndexFile);
  try {
    const InputFile file(name, InputFile::Links::kRefuse, patient);
    if (file.size() > kMaxIndexBytes) {
      throw data_loss("file \"", name, "\": ", file.size(), " bytes, at most ", kMaxIndexBytes, " are allowed");
    }
    std::string text(static_cast<size_t>(file.size()), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return checkpoint_index_from_json(text, str_cat("file \"", name, "\""));
  } catch (const Error& error) {
    // A checkpoint without an index is damaged; only one without a directory is not there.
    if (error.code() != StatusCode::kNotFound || !exists(path)) throw;
    throw data_loss(error.status().message());
  }
}

// Of "ckpt-7"; nothing for "ckpt-007", which is none of ours.
std::optional<int64_t> step_of(std::string_view name) {
  int64_t step = 0;
  if (!name.starts_with(kPrefix) || !absl::SimpleAtoi(std::string(name.substr(kPrefix.size())), &step))
    return std::nullopt;
  if (step < 0 || step > kLargestStep || name != str_cat(kPrefix, step)) return std::nullopt;
  return step;
}

// Rising.
std::vector<int64_t> steps_among(const std::vector<std::string>& names) {
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Of "ckpt-7.damaged-0123456789abcdef".
std::optional<int64_t> damaged_step(std::string_view name) {
  const size_t suffix = name.find(kDamagedSuffix);
  return suffix == std::string_view::npos ? std::nullopt : step_of(name.substr(0, suffix));
}

// What makes a checkpoint complete. Throws an Error that says what is not.
CheckpointIndex complete_index(const std::string& path, int64_t step, bool patient = true) {
  CheckpointIndex index = read_index(path, patient);
  if (index.step != step) throw data_loss("checkpoint \"", path, "\": its index is of step ", index.step);
  for (const auto& [file, bytes] : index.files) {
    const std::string name = str_cat(path, "/", file);
    const int64_t size = size_of(name, patient ? disk::Patience() : disk::Patience::none());
    if (size != bytes) throw data_loss("file \"", name, "\": ", size, " bytes, expected ", bytes);
  }
  return index;
}

// What is wrong with it, after a look at all data; nothing when it is complete. Throws what is no word about what is in
// it.
std::optional<Status> damage_in(const std::string& path, int64_t step) {
  try {
    complete_index(path, step);
    const CheckpointReader reader(path);
    for (const std::string& name : reader.names()) reader.check(name, 0, rows_of(reader.spec(name).sizes));
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != StatusCode::kDataLoss) throw;
    return error.status();
  }
}

// Calls `write` until it does not fail for a disk that is away.
template <class Write>
void write_patiently(const Write& write) {
  disk::Patience patience;
  std::optional<Error> first;
  while (true) {
    try {
      return write();
    } catch (const Error& error) {
      // A file of the try before that could not be removed.
      if (first && error.code() == StatusCode::kAlreadyExists) throw *first;
      if (error.code() != StatusCode::kUnavailable || !patience.wait()) throw;
      if (!first) first = error;
    }
  }
}

// The name that a checkpoint gets when it is complete, which users know: of "d/.tmp-7-0123456789abcdef" it is
// "d/ckpt-7".
std::string final_path(const std::string& temporary) {
  const size_t name = temporary.rfind('/') + 1;  // 0 if there is none
  if (!temporary.substr(name).starts_with(kTemporaryPrefix)) return temporary;
  const std::string rest = temporary.substr(name + kTemporaryPrefix.size());
  return str_cat(temporary.substr(0, name), kPrefix, rest.substr(0, rest.rfind('-')));
}

// What `use` returns. Its errors name the checkpoint and not the directory that is there for the time being.
template <class Use>
auto in_final_words(const std::string& temporary, const Use& use) {
  try {
    return use();
  } catch (const Error& error) {
    const Status& status = error.status();
    throw Error(Status(status.code(), absl::StrReplaceAll(status.message(), {{temporary, final_path(temporary)}}),
                       status.task(), status.detail()));
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
      file = std::make_unique<SafetensorsFile>(path, InputFile::Links::kRefuse);
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
                                    const std::vector<Slice>& slices, OutputFile::Cache cache) {
  const std::string file = file_of(task);
  std::vector<const Slice*> sorted;
  for (const Slice& slice : slices) sorted.push_back(&slice);
  // Falling element sizes keep every tensor aligned in the file, and of those whole blocks first keep them so.
  const auto order = [](const Slice* slice) {
    return std::pair(-bytes_per_element(slice->spec.dtype), slice->spec.bytes() % disk::kBlock != 0);
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Slice* a, const Slice* b) { return order(a) < order(b); });
  std::vector<ShardEntry> entries;
  std::vector<NamedSpec> tensors;
  for (const Slice* slice : sorted) {
    const ShardEntry& entry =
        entries.emplace_back(ShardEntry{slice->variable, slice->spec, slice->full_sizes, slice->row_offset, file, 0});
    if (auto complaint = complaint_about(entry)) throw invalid_argument("checkpoint: ", *complaint);
    tensors.push_back({entry.tensor_name(), entry.spec});
  }
  if (entries.empty()) return entries;
  const auto write = [&] {
    // By "pt" Python knows that these are tensors of PyTorch.
    SafetensorsWriter writer(str_cat(temporary, "/", file), tensors, {{"format", "pt"}}, cache);
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string name = entries[i].tensor_name();
      entries[i].crc =
          sorted[i]->pieces ? writer.write_pieces(name, sorted[i]->pieces) : writer.write(name, sorted[i]->bytes);
    }
    writer.finish();
  };
  in_final_words(temporary, [&] { write_patiently(write); });
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

void CheckpointDirectory::make() const {
  std::error_code error;
  const fs::path absolute = fs::absolute(path_);
  std::vector<fs::path> grown;  // directories that get a new one
  for (fs::path missing = absolute; missing.has_relative_path() && !fs::exists(missing, error);) {
    missing = missing.parent_path();
    grown.push_back(missing);
  }
  fs::create_directories(absolute, error);
  if (error) throw file_error(path_, "create", error.value());
  for (const fs::path& each : grown) sync_directory(each.string());
}

std::string CheckpointDirectory::begin(int64_t step) {
  if (step < 0) throw invalid_argument("checkpoint: step ", step, " is negative");
  if (step > kLargestStep) throw invalid_argument("checkpoint: step ", step, ", expected at most ", kLargestStep);
  make();
  // A second try: between its making and its lock, somebody's keep() may take the directory for a dead one's.
  for (int tries = 0;; ++tries) {
    const std::string temporary = temporary_path(path_, step);
    if (disk::repeated({}, [&] { return disk::mkdir(temporary, 0777); }) != 0) {
      throw file_error(path_, "create a checkpoint in it", errno);  // the user knows this name, and not the other one
    }
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
  in_final_words(temporary, [&] { take_stock(temporary, index); });
  std::string aside;
  ino_t damaged = 0;
  if (exists(path)) {
    damaged = number_of(path);
    // Only what was read and is wrong gives way: not what a disk does not give us now, nor one of a later version.
    const auto damage = damage_in(path, index.step);
    if (!damage) {
      throw already_exists(
          "checkpoint \"", path,
          "\": there is one already, of this training or of another that saves there; expected another "
          "step, or a directory of its own for each training");
    }
    if (exists(path)) {  // else somebody's keep() has just removed it
      aside = str_cat(path, kDamagedSuffix, new_number());
      MUSTER_LOG(warning) << "checkpoint " << path << " is damaged, becomes " << aside
                          << " and gives way to a new one: " << damage->message();
    }
  }
  const std::string text = to_json(index);
  const std::string index_path = str_cat(temporary, "/", kIndexFile);
  const auto write = [&] {
    OutputFile file(index_path);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
  };
  in_final_words(temporary, [&] { write_patiently(write); });
  try {
    in_final_words(temporary, [&] { sync_directory(temporary); });  // the tasks have synced what is in their files
    if (!aside.empty()) rename_directory(path, aside);
    try {
      if (!aside.empty() && number_of(aside) != damaged) {
        throw already_exists("checkpoint \"", path, "\": somebody else has just written one");
      }
      rename_directory(temporary, path);
    } catch (...) {
      if (!aside.empty()) disk::rename(aside, path);
      throw;
    }
  } catch (...) {
    unlink(index_path.c_str());
    throw;
  }
  end(temporary);
  sync_directory(path_);
  return path;
}

void CheckpointDirectory::abandon(const std::string& temporary) {
  {
    absl::MutexLock hold(&mu_);
    if (!begun_.contains(temporary)) return;
  }
  remove_tree(temporary);
  end(temporary);
}

std::optional<Checkpoint> CheckpointDirectory::latest() const {
  const std::optional<CheckpointIndex> index = latest_index();
  if (!index) return std::nullopt;
  return Checkpoint{index->step, path_of(index->step)};
}

std::optional<CheckpointIndex> CheckpointDirectory::latest_index() const {
  const auto steps = this->steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (auto index = index_unless_damaged(*step)) return index;
  }
  return std::nullopt;
}

std::optional<CheckpointIndex> CheckpointDirectory::index_unless_damaged(int64_t step) const {
  try {
    return complete_index(path_of(step), step);
  } catch (const Error& error) {
    const bool is_gone = error.code() == StatusCode::kNotFound || error.code() == StatusCode::kDataLoss;
    if (is_gone && !exists(path_of(step))) return std::nullopt;  // somebody else has just removed it
    if (error.code() != StatusCode::kDataLoss) throw;
    MUSTER_LOG(warning) << "checkpoint " << path_of(step) << " is damaged and not used: " << error.status().message();
    return std::nullopt;
  }
}

std::vector<Checkpoint> CheckpointDirectory::all() const {
  std::vector<Checkpoint> complete = present();
  std::erase_if(complete, [this](const Checkpoint& checkpoint) { return !index_unless_damaged(checkpoint.step); });
  return complete;
}

std::vector<Checkpoint> CheckpointDirectory::present() const {
  std::vector<Checkpoint> present;
  for (int64_t step : steps()) present.push_back({step, path_of(step)});
  return present;
}

CheckpointIndex CheckpointDirectory::index(int64_t step) const {
  if (!exists(path_of(step))) throw not_found("checkpoint \"", path_of(step), "\": there is none");
  return complete_index(path_of(step), step);
}

void CheckpointDirectory::keep(int count, std::optional<int64_t> always) {
  for (const std::string& path : retire(count, always, {})) remove_tree(path);
}

void CheckpointDirectory::keep_and_remove_later(int count, std::optional<int64_t> always, const Seen& seen) {
  removal_.remove(retire(count, always, seen));
}

std::vector<std::string> CheckpointDirectory::retire(int count, std::optional<int64_t> always, const Seen& seen) {
  if (count < 1) throw invalid_argument("checkpoint \"", path_, "\": expected to keep at least 1, got ", count);
  const std::vector<std::string> names = names_in(path_);
  const std::vector<int64_t> steps = steps_among(names);
  if (seen) seen(steps);
  // Without patience and from the newest on: one that cannot be read must not hold up every save, and stays.
  int complete = 0;
  int64_t oldest = 0;
  for (auto step = steps.rbegin(); step != steps.rend() && complete < count; ++step) {
    try {
      complete_index(path_of(*step), *step, /*patient=*/false);
      ++complete;
      oldest = *step;
    } catch (const Error&) {
    }
  }
  std::vector<std::string> remains = remains_among(names);
  if (complete < count) return remains;
  for (int64_t step : steps) {
    if (step >= oldest || step == always) continue;
    if (auto removed = put_away(step)) remains.push_back(*std::move(removed));
  }
  for (const std::string& name : names) {
    const auto damaged = damaged_step(name);
    if (damaged && *damaged < oldest) remains.push_back(str_cat(path_, "/", name));
  }
  return remains;
}

std::vector<std::string> CheckpointDirectory::remains_among(const std::vector<std::string>& names) const {
  std::vector<std::string> remains;
  for (const std::string& name : names) {
    const std::string path = str_cat(path_, "/", name);
    if (name.starts_with(kRemovedPrefix)) remains.push_back(path);
    if (!name.starts_with(kTemporaryPrefix)) continue;
    if (auto lock = lock_directory(path)) {  // nobody writes there, nor will who has just made it and has no lock yet
      const std::string removed = removed_path(path_);
      if (disk::rename(path, removed) == 0) remains.push_back(removed);
      close(*lock);
    }
  }
  return remains;
}

std::optional<std::string> CheckpointDirectory::put_away(int64_t step) {
  const std::string path = path_of(step);
  if (!exists(path)) return std::nullopt;
  std::string removed = removed_path(path_);
  try {
    rename_directory(path, removed);
  } catch (const Error& error) {
    if (error.code() == StatusCode::kNotFound) return std::nullopt;  // somebody else was faster
    throw;
  }
  return removed;
}

void CheckpointDirectory::remove(int64_t step) {
  if (const auto removed = put_away(step)) remove_tree(*removed);
}

void CheckpointDirectory::remove_remains() {
  for (const std::string& path : remains_among(names_in(path_))) remove_tree(path);
}

std::string CheckpointDirectory::path_of(int64_t step) const { return str_cat(path_, "/", kPrefix, step); }

std::vector<int64_t> CheckpointDirectory::steps() const { return steps_among(names_in(path_)); }

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

CheckpointIndex read_checkpoint_index(const std::string& path) { return read_index(path, /*patient=*/true); }

}  // namespace muster
