#include "muster/graph/device_spec.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr std::string_view kForm = "/job:NAME/replica:N/task:N/device:TYPE:N, each part optional";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Letters, digits, '_', '-' and '.', and a letter or '_' first.
bool is_name(std::string_view text) {
  return !text.empty() && (is_letter(text[0]) || text[0] == '_') && std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
  });
}

// Not the locale's upper case: a device is called the same everywhere.
std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

bool is_plain_type(std::string_view text) { return upper(text) == "CPU" || upper(text) == "GPU"; }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Fills one DeviceSpec from its text and says what is wrong with it.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  DeviceSpec parse() {
    for (std::string_view part : split(text_, '/')) {
      if (!part.empty()) add(split(part, ':'));
    }
    return spec_;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw invalid_argument("device \"", text_, "\": ", parts..., "; expected ", kForm);
  }

  void add(const std::vector<std::string_view>& words) {
    std::string_view key = words[0];
    if (key == "job" && words.size() == 2) {
      if (spec_.job) fail("more than one job");
      if (words[1] == "*") return;
      if (!is_name(words[1])) fail("\"", words[1], "\" is no name of a job");
      spec_.job = std::string(words[1]);
    } else if (key == "replica" && words.size() == 2) {
      if (spec_.replica) fail("more than one replica");
      spec_.replica = number("replica", words[1]);
    } else if (key == "task" && words.size() == 2) {
      if (spec_.task) fail("more than one task");
      spec_.task = number("task", words[1]);
    } else if (key == "device" && (words.size() == 2 || words.size() == 3)) {
      set_type(words[1], words.size() == 3 ? words[2] : "*");
    } else if (is_plain_type(key) && words.size() <= 2) {
      set_type(key, words.size() == 2 ? words[1] : "*");
    } else {
      fail("unknown attribute \"", key, "\"");
    }
  }

  std::optional<int> number(std::string_view what, std::string_view digits) const {
    if (digits == "*") return std::nullopt;
    if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit)) {
      fail(what, " \"", digits, "\" is not a number");
    }
    int64_t value = 0;
    for (char c : digits) {
      value = value * 10 + (c - '0');
      if (value > std::numeric_limits<int>::max()) fail(what, " ", digits, " is too large");
    }
    return static_cast<int>(value);
  }

  void set_type(std::string_view type, std::string_view index) {
    if (spec_.type) fail("Multiple device types are not allowed");
    if (type == "*") return;
    if (!is_name(type)) fail("\"", type, "\" is no type of device");
    spec_.type = is_plain_type(type) ? upper(type) : std::string(type);
    spec_.index = number("device index", index);
  }

  const std::string_view text_;
  DeviceSpec spec_;
};

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view text) { return Parser(text).parse(); }

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) str_append(text, "/job:", *job);
  if (replica) str_append(text, "/replica:", *replica);
  if (task) str_append(text, "/task:", *task);
  if (type) str_append(text, "/device:", *type, ":", index ? std::to_string(*index) : "*");
  return text;
}

DeviceSpec DeviceSpec::merged_with(const DeviceSpec& inner) const {
  DeviceSpec merged = *this;
  if (inner.job) merged.job = inner.job;
  if (inner.replica) merged.replica = inner.replica;
  if (inner.task) merged.task = inner.task;
  if (inner.type && inner.type != type) merged.index.reset();
  if (inner.type) merged.type = inner.type;
  if (inner.index) merged.index = inner.index;
  return merged;
}

bool DeviceSpec::matches(const DeviceSpec& full) const {
  return (!job || job == full.job) && (!replica || replica == full.replica) && (!task || task == full.task) &&
         (!type || type == full.type) && (!index || index == full.index);
}

std::string canonical_device(std::string_view device, std::string_view default_device) {
  const DeviceSpec base{.job = "localhost", .replica = 0, .task = 0, .type = "CPU", .index = 0};
  DeviceSpec spec = base.merged_with(DeviceSpec::parse(default_device)).merged_with(DeviceSpec::parse(device));
  if (!spec.index) spec.index = 0;
  return spec.to_string();
}

}  // namespace muster
