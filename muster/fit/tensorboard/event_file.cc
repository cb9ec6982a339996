#include "muster/fit/tensorboard/event_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/data/files/tfrecord_frame.h"
#include "muster/fit/event.pb.h"

namespace muster {
namespace {

std::string file_name() {
  static std::atomic<int> made = 0;
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return str_cat("events.out.tfevents.", static_cast<int64_t>(EventFile::now()), ".", host, ".", ::getpid(), ".",
                 made++);
}

Error cannot_write_events(const std::string& path, const std::string& why) {
  return unavailable("events for TensorBoard: \"", path, "\" cannot be written: ", why);
}

}  // namespace

// TensorBoard shows when something happened, so this is the clock on the wall.
double EventFile::now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventFile::EventFile(const std::string& directory) {
  std::error_code refused;
  std::filesystem::create_directories(directory, refused);
  path_ = (std::filesystem::path(directory) / file_name()).string();
  if (refused) throw cannot_write_events(path_, refused.message());
  out_.open(path_, std::ios::binary);
  check();
  proto::Event event;
  event.set_file_version("brain.Event:2");
  add(std::move(event));
  flush();
}

// As a record of a TFRecord file. Who reads meanwhile may see a part of it, and waits for the rest.
void EventFile::add(proto::Event event) {
  event.set_wall_time(now());
  const std::string bytes = event.SerializeAsString();
  const auto head = tfrecord_head(bytes);
  const auto tail = tfrecord_tail(bytes);
  out_.write(head.data(), head.size());
  out_ << bytes;
  out_.write(tail.data(), tail.size());
  check();
}

void EventFile::flush() {
  out_ << std::flush;
  check();
}

void EventFile::check() const {
  if (!out_) throw cannot_write_events(path_, std::strerror(errno));
}

}  // namespace muster
