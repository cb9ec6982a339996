#include "muster/fit/event_file.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/data/files/tfrecord_frame.h"
#include "muster/fit/event.pb.h"

namespace muster {
namespace {

// TensorBoard shows when something happened, so this is the clock on the wall.
double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name() {
  static std::atomic<int> made = 0;
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return str_cat("events.out.tfevents.", static_cast<int64_t>(seconds_since_1970()), ".", host, ".", ::getpid(), ".",
                 made++);
}

template <class Number>
void append_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

EventFile::EventFile(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  path_ = (std::filesystem::path(directory) / file_name()).string();
  out_.open(path_, std::ios::binary);
  proto::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_file_version("brain.Event:2");
  put(event.SerializeAsString());
}

void EventFile::write(int64_t step, const std::map<std::string, double>& scalars) {
  proto::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_step(step);
  for (const auto& [tag, value] : scalars) {
    proto::EventSummary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(tag);
    scalar.set_simple_value(static_cast<float>(value));
  }
  put(event.SerializeAsString());
}

// As a record of a TFRecord file, all at once: somebody may be reading.
void EventFile::put(const std::string& event) {
  std::string record;
  append_number(record, static_cast<uint64_t>(event.size()));
  append_number(record, tfrecord_sum(record));
  record += event;
  append_number(record, tfrecord_sum(event));
  out_ << record << std::flush;
  if (!out_) throw unavailable("events for TensorBoard: \"", path_, "\" cannot be written");
}

}  // namespace muster
