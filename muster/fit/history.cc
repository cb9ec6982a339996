#include "muster/fit/history.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <numeric>

#include "muster/base/status.h"

namespace muster {

namespace {

// How many letters have to be put in, left out or changed to make one of the other.
size_t letters_apart(const std::string& a, const std::string& b) {
  std::vector<size_t> apart(b.size() + 1);  // of what is seen of `a` and each beginning of `b`
  std::iota(apart.begin(), apart.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(apart[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = before + (a[i] == b[j] ? 0 : 1);
      before = std::exchange(apart[j + 1], std::min({changed, apart[j] + 1, apart[j + 1] + 1}));
    }
  }
  return apart.back();
}

template <class Values>
std::string listed(const std::string& wanted, const Values& values) {
  if (values.empty()) return "; there are none";
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  const std::string nearest = nearest_name(wanted, names);
  return str_cat("; there are ", absl::StrJoin(names, ", "),
                 nearest.empty() ? "" : str_cat("; did you mean \"", nearest, "\"?"));
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& names) {
  const size_t most = std::max<size_t>(1, name.size() / 3);
  std::string nearest;
  size_t least = most + 1;
  for (const std::string& each : names) {
    // A word that was cut off, such as acc, is meant rather than one of as many letters.
    const bool begins = name.size() >= 3 && each.starts_with(name) && each != name;
    const size_t apart = begins ? 0 : letters_apart(name, each);
    if (apart < least) nearest = each;
    least = std::min(least, apart);
  }
  return nearest;
}

double Logs::at(const std::string& name) const {
  if (const auto found = find(name); found != end()) return found->second;
  throw not_found("there is no number \"", name, "\"", listed(name, *this));
}

void History::add(int epoch, const Logs& logs) {
  epochs_.push_back(epoch);
  for (const auto& [name, value] : logs) values_[name].push_back(value);
}

std::vector<std::string> History::names() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_) names.push_back(name);
  return names;
}

const std::vector<double>& History::operator[](const std::string& name) const {
  const auto found = values_.find(name);
  if (found != values_.end()) return found->second;
  throw not_found("history: there is no \"", name, "\"", listed(name, values_));
}

}  // namespace muster
