#include "muster/cluster/resolvers/slurm_hostlist.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr size_t kMaxNodes = 200'000;

std::optional<int> number(std::string_view digits) {
  int value = 0;
  const bool read = !digits.empty() &&
                    std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
                    absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &value);
  return read ? std::optional(value) : std::nullopt;
}

// At commas outside of brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] == ',' && depth == 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Writes out one list and says what is wrong with it.
class HostlistExpander {
 public:
  explicit HostlistExpander(std::string_view text) : text_(text) {}

  std::vector<std::string> expand() {
    for (std::string_view name : split(text_)) add("", name);
    return std::move(hosts_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw invalid_argument("hostlist \"", text_, "\": ", parts..., "; expected a form like node[01-03,7],other");
  }

  // `prefix` is written out, `rest` is not.
  void add(const std::string& prefix, std::string_view rest) {
    const size_t open = rest.find('['), close = rest.find(']');
    if (open == std::string_view::npos && close == std::string_view::npos) {
      if (prefix.empty() && rest.empty()) fail("a name is empty");
      if (hosts_.size() == kMaxNodes) fail("more than ", kMaxNodes, " names");
      hosts_.push_back(str_cat(prefix, rest));
      return;
    }
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
      fail("a bracket has no partner");
    }
    const std::string begin = str_cat(prefix, rest.substr(0, open));
    for (std::string_view range : split(rest.substr(open + 1, close - open - 1))) {
      add_range(begin, range, rest.substr(close + 1));
    }
  }

  void add_range(const std::string& prefix, std::string_view range, std::string_view rest) {
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::optional<int> first = number(low);
    const std::optional<int> last = dash == std::string_view::npos ? first : number(range.substr(dash + 1));
    if (!first || !last || *last < *first) fail("\"", range, "\" is no range of numbers");
    for (int64_t value = *first; value <= *last; ++value) {
      const std::string digits = std::to_string(value);
      const std::string zeros(low.size() > digits.size() ? low.size() - digits.size() : 0, '0');
      add(str_cat(prefix, zeros, digits), rest);
    }
  }

  const std::string_view text_;
  std::vector<std::string> hosts_;
};

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) { return HostlistExpander(text).expand(); }

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> counts;
  for (std::string_view part : split(text)) {
    const size_t open = part.find("(x");
    const bool repeated = open != std::string_view::npos && part.ends_with(')');
    const std::optional<int> count = number(repeated ? part.substr(0, open) : part);
    const std::optional<int> times = repeated ? number(part.substr(open + 2, part.size() - open - 3)) : 1;
    if (!count || !times) {
      throw invalid_argument("tasks per node \"", text, "\": \"", part, "\" is no count; expected a form like 2(x3),1");
    }
    if (counts.size() + static_cast<size_t>(*times) > kMaxNodes) {
      throw invalid_argument("tasks per node \"", text, "\": more than ", kMaxNodes, " nodes");
    }
    counts.insert(counts.end(), static_cast<size_t>(*times), *count);
  }
  return counts;
}

}  // namespace muster
