#include "muster/fit/history.h"

#include <absl/strings/str_join.h>

#include "muster/base/status.h"

namespace muster {

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
  throw not_found("history: there is no \"", name, "\"; there are ", absl::StrJoin(names(), ", "));
}

}  // namespace muster
