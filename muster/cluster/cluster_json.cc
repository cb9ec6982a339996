#include "muster/cluster/cluster_json.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "muster/base/status.h"
#include "muster/io/json_words.h"

namespace muster {
namespace {

using nlohmann::json;

std::string address_of(const json& value, const std::string& name) {
  if (!value.is_string()) throw invalid_argument(name, ": expected \"host:port\", got ", describe(value));
  const auto& address = value.get_ref<const std::string&>();
  if (auto complaint = address_complaint(address)) {
    throw invalid_argument(name, ": expected \"host:port\", got ", describe(value), ": ", *complaint);
  }
  return address;
}

ClusterSpec::Tasks tasks_of(const json& value, const std::string& name) {
  ClusterSpec::Tasks tasks;
  if (value.is_array()) {
    for (const json& address : value) {
      const int index = static_cast<int>(tasks.size());
      tasks.emplace_hint(tasks.end(), index, address_of(address, str_cat(name, "[", index, "]")));
    }
  } else if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const int index = task_index_of(key, str_cat(name, ".", key));
      if (!tasks.emplace(index, address_of(address, str_cat(name, ".", key))).second) {
        throw invalid_argument(name, ".", key, ": there are two addresses for task ", index);
      }
    }
  } else {
    throw invalid_argument(name, ": expected a list of \"host:port\" or an object by index, got ", describe(value));
  }
  return tasks;
}

}  // namespace

json parse_json(std::string_view text, std::string_view name) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw invalid_argument(name, ": ", json_words(error, text.size()));
  }
}

std::string describe(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

int task_index_of(const json& value, std::string_view name) {
  int index = 0;
  const bool read = value.is_string() ? absl::SimpleAtoi(value.get_ref<const std::string&>(), &index)
                                      : value.is_number_integer() && absl::SimpleAtoi(value.dump(), &index);
  if (!read) throw invalid_argument(name, ": expected the index of a task, got ", describe(value));
  if (index < 0 || index >= ClusterSpec::kMaxTasks) {
    throw invalid_argument(name, ": expected the index of a task, from 0 to ", ClusterSpec::kMaxTasks - 1, ", got ",
                           index);
  }
  return index;
}

ClusterSpec cluster_spec_of(const json& value, std::string_view name) {
  if (!value.is_object()) throw invalid_argument(name, ": expected an object with the jobs, got ", describe(value));
  const auto inner = value.find("cluster");
  const bool has_jobs = inner != value.end() && inner->is_object() && std::ranges::any_of(*inner, &json::is_structured);
  if (has_jobs) throw invalid_argument(name, ": is as TF_CONFIG has it, expected only what stands in its \"cluster\"");
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, tasks] : value.items()) jobs[job] = tasks_of(tasks, str_cat(name, ".", job));
  try {
    return ClusterSpec::sparse(std::move(jobs));
  } catch (const Error& error) {
    throw invalid_argument(name, ": ", error.status().message());
  }
}

}  // namespace muster
