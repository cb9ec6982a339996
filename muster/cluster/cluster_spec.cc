#include "muster/cluster/cluster_spec.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "muster/base/status.h"
#include "muster/cluster/cluster.pb.h"
#include "muster/cluster/cluster_json.h"

namespace muster {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.'; }

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_name_character);
}

// An IPv6 address between its brackets, with or without a zone: "fe80::1%eth0". Whether it exists is for the network.
bool is_ipv6(std::string_view text) {
  return text.find(':') != std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_name_character(c) || c == ':' || c == '%'; });
}

ClusterSpec::Tasks numbered(const std::vector<std::string>& addresses) {
  ClusterSpec::Tasks tasks;
  for (const std::string& address : addresses) {
    tasks.emplace_hint(tasks.end(), static_cast<int>(tasks.size()), address);
  }
  return tasks;
}

void check(const std::map<std::string, ClusterSpec::Tasks>& jobs) {
  absl::flat_hash_map<std::string_view, std::pair<std::string_view, int>> owners;
  for (const auto& [job, tasks] : jobs) {
    if (!is_name(job)) {
      throw invalid_argument("job \"", job, "\": expected a name of letters, digits, '_', '-' and '.'");
    }
    for (const auto& [index, address] : tasks) {
      if (index < 0 || index >= ClusterSpec::kMaxTasks) {
        throw invalid_argument("job \"", job, "\": index ", index, " is not from 0 to ", ClusterSpec::kMaxTasks - 1);
      }
      if (auto complaint = address_complaint(address)) {
        throw invalid_argument(TaskId{job, index}.to_string(), ": address \"", address, "\": ", *complaint,
                               "; expected \"host:port\"");
      }
      if (address.ends_with(":0")) continue;
      auto [owner, is_new] = owners.try_emplace(address, job, index);
      if (!is_new) {
        throw invalid_argument("address \"", address, "\" is that of two tasks, ",
                               TaskId{std::string(owner->second.first), owner->second.second}.to_string(), " and ",
                               TaskId{job, index}.to_string());
      }
    }
  }
}

}  // namespace

std::optional<std::string> address_complaint(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || address.ends_with(']')) return "no port";
  const std::string_view host = address.substr(0, colon), port = address.substr(colon + 1);
  int number = 0;
  const bool read = !port.empty() && std::all_of(port.begin(), port.end(), is_digit) &&
                    absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &number);
  if (!read || number > 65535) return str_cat("\"", port, "\" is no port");
  if (host.empty()) return "no host";
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed ? is_ipv6(host.substr(1, host.size() - 2)) : is_name(host)) return std::nullopt;
  if (is_ipv6(host)) return str_cat("an IPv6 address needs brackets, and then a port: [", host, "]:", port);
  return str_cat("\"", host, "\" is no host");
}

ClusterSpec::ClusterSpec(std::initializer_list<std::pair<std::string, std::vector<std::string>>> jobs) {
  for (const auto& [job, addresses] : jobs) {
    if (!jobs_.emplace(job, numbered(addresses)).second) throw invalid_argument("job \"", job, "\" is there twice");
  }
  check(jobs_);
}

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  for (const auto& [job, addresses] : jobs) jobs_.emplace_hint(jobs_.end(), job, numbered(addresses));
  check(jobs_);
}

ClusterSpec ClusterSpec::sparse(std::map<std::string, Tasks> jobs) {
  check(jobs);
  ClusterSpec cluster;
  cluster.jobs_ = std::move(jobs);
  return cluster;
}

ClusterSpec ClusterSpec::from_json(std::string_view text, std::string_view name) {
  return cluster_spec_of(parse_json(text, name), name);
}

std::string ClusterSpec::to_json() const {
  nlohmann::json jobs = nlohmann::json::object();
  for (const auto& [job, tasks] : jobs_) {
    const bool listed = dense(job);
    nlohmann::json& out = jobs[job] = listed ? nlohmann::json::array() : nlohmann::json::object();
    for (const auto& [index, address] : tasks) {
      if (listed) {
        out.push_back(address);
      } else {
        out[std::to_string(index)] = address;
      }
    }
  }
  return jobs.dump();
}

ClusterSpec ClusterSpec::from_proto(const proto::ClusterDef& def) {
  std::map<std::string, Tasks> jobs;
  for (const proto::JobDef& job : def.job()) {
    if (!jobs.try_emplace(job.name(), job.tasks().begin(), job.tasks().end()).second) {
      throw invalid_argument("job \"", job.name(), "\" is there twice");
    }
  }
  return sparse(std::move(jobs));
}

proto::ClusterDef ClusterSpec::to_proto() const {
  proto::ClusterDef def;
  for (const auto& [job, tasks] : jobs_) {
    proto::JobDef& out = *def.add_job();
    out.set_name(job);
    for (const auto& [index, address] : tasks) (*out.mutable_tasks())[index] = address;
  }
  return def;
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

bool ClusterSpec::contains(const TaskId& task) const {
  auto job = jobs_.find(task.job);
  return job != jobs_.end() && job->second.contains(task.index);
}

std::vector<TaskId> ClusterSpec::all_tasks() const {
  std::vector<TaskId> all;
  for (const std::string& job : jobs()) {
    for (int index : task_indices(job)) all.push_back({job, index});
  }
  return all;
}

const ClusterSpec::Tasks& ClusterSpec::tasks(const std::string& job) const {
  auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  std::string names;
  for (const auto& [name, tasks] : jobs_) str_append(names, names.empty() ? "" : ", ", name);
  throw invalid_argument("no job \"", job, "\" in the cluster, which has ", names.empty() ? "no jobs" : names);
}

int ClusterSpec::num_tasks(const std::string& job) const { return static_cast<int>(tasks(job).size()); }

std::vector<int> ClusterSpec::task_indices(const std::string& job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks(job)) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::task_address(const std::string& job, int index) const {
  const Tasks& known = tasks(job);
  auto found = known.find(index);
  if (found != known.end()) return found->second;
  throw invalid_argument("no task ", index, " in job \"", job, "\", which has ", known.size(),
                         known.size() == 1 ? " task" : " tasks");
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  const Tasks& known = tasks(job);
  std::vector<std::optional<std::string>> all(known.empty() ? 0 : known.rbegin()->first + 1);
  for (const auto& [index, address] : known) all[index] = address;
  return all;
}

bool ClusterSpec::dense(const std::string& job) const {
  const Tasks& known = tasks(job);
  return known.empty() || known.rbegin()->first + 1 == static_cast<int>(known.size());
}

std::string ClusterSpec::to_string() const {
  std::string text = "ClusterSpec({";
  for (const auto& [job, tasks] : jobs_) {
    const bool listed = dense(job);
    str_append(text, text.ends_with('{') ? "'" : ", '", job, "': ", listed ? "[" : "{");
    std::string_view separator = "";
    for (const auto& [index, address] : tasks) {
      str_append(text, separator);
      if (!listed) str_append(text, index, ": ");
      str_append(text, "'", address, "'");
      separator = ", ";
    }
    text += listed ? ']' : '}';
  }
  return text + "})";
}

std::ostream& operator<<(std::ostream& out, const ClusterSpec& cluster) { return out << cluster.to_string(); }

}  // namespace muster
