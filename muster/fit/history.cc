#include "muster/fit/history.h"

#include <absl/strings/str_join.h>

#include "muster/base/status.h"

namespace muster {

namespace {

template <class Values>
std::string listed(const Values& values) {
  if (values.empty()) return "; there are none";
  return str_cat("; there are ",
                 absl::StrJoin(values, ", ", [](std::string* out, const auto& value) { *out += value.first; }));
}

}  // namespace

double Logs::at(const std::string& name) const {
  if (const auto found = find(name); found != end()) return found->second;
  throw not_found("there is no number \"", name, "\"", listed(*this));
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
  throw not_found("history: there is no \"", name, "\"", listed(values_));
}

}  // namespace muster
