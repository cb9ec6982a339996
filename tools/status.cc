#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/resolver_from_flags.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_channel.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

struct StatusFlags {
  std::string target, cluster, credentials;
  std::string name = "client";
  bool watch = false, json = false, variables = false;
  double every = 2;
};

// What is known of one task.
struct TaskRow {
  std::string task, address;
  std::optional<WorkerStatus> up{};
  Status down{};
  bool needs_no_server = false;  // the chief of parameter servers
  std::vector<VariableInfo> variables{};
  double rate = 0;  // requests per second, since the look before
};

struct Known {
  std::shared_ptr<RpcChannel> channel;
  uint64_t incarnation = 0;
  uint64_t requests = 0;
  std::chrono::steady_clock::time_point when{};
};

std::vector<std::pair<std::string, std::string>> addresses(const StatusFlags& flags) {
  constexpr std::string_view scheme = "grpc://";
  if (!flags.target.empty()) {
    const bool has_scheme = flags.target.starts_with(scheme);
    return {{"", has_scheme ? flags.target.substr(scheme.size()) : flags.target}};
  }
  const char* words[] = {"muster", "--cluster", flags.cluster.c_str()};
  const ClusterSpec spec = resolver_from_flags(flags.cluster.empty() ? 1 : 3, words).cluster_spec();
  std::vector<std::pair<std::string, std::string>> all;
  for (const TaskId& task : spec.all_tasks()) all.emplace_back(task.to_string(), spec.task_address(task));
  if (all.empty()) throw invalid_argument("which cluster? Give --target, --cluster, or set TF_CONFIG");
  return all;
}

TaskRow look(const std::string& task, const std::string& address, Known& known, bool with_variables) {
  TaskRow row{.task = task, .address = address};
  try {
    RemoteWorker worker(known.channel);
    const WorkerStatus status = worker.status();
    const auto now = std::chrono::steady_clock::now();
    // Until there was a look before: since its start.
    double seconds = status.uptime_seconds;
    uint64_t before = 0;
    if (known.incarnation == status.incarnation) {
      seconds = std::chrono::duration<double>(now - known.when).count();
      before = known.requests;
    }
    row.rate = seconds > 0 ? static_cast<double>(status.requests - before) / seconds : 0;
    known.incarnation = status.incarnation;
    known.requests = status.requests;
    known.when = now;
    row.task = status.task;
    row.up = status;
    if (with_variables) row.variables = worker.variables();
  } catch (const Error& error) {
    row.down = error.status();
  }
  return row;
}

// Nobody listens there, and nobody need do so.
bool has_no_server(const TaskRow& row) {
  return row.needs_no_server && !row.up && row.down.code() == StatusCode::kUnavailable;
}

// A task that refuses this client, or that this client refuses, is there.
std::string state_of(const TaskRow& row) {
  if (row.up) return row.up->lost.empty() ? "up" : "lost";
  if (has_no_server(row)) return "no server";
  return row.down.code() == StatusCode::kUnauthenticated ? "refused" : "down";
}

std::string bytes_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1) return absl::StrFormat("%.1f KiB", mib * 1024);
  return mib >= 1024 ? absl::StrFormat("%.1f GiB", mib / 1024) : absl::StrFormat("%.1f MiB", mib);
}

std::string devices_text(const std::vector<std::string>& devices) {
  std::map<std::string, int> counts;
  for (const std::string& device : devices) {
    const size_t type = device.rfind("/device:") + 8;
    ++counts[device.substr(type, device.rfind(':') - type)];
  }
  std::string text;
  for (const auto& [type, count] : counts) str_append(text, text.empty() ? "" : ", ", count, " ", type);
  return text;
}

// `told`: a row whose error is said elsewhere, or null.
std::string table(const std::vector<TaskRow>& rows, bool colour, const TaskRow* told) {
  std::vector<std::vector<std::string>> cells{
      {"task", "address", "state", "devices", "programs", "variables", "bytes", "sessions", "requests/s", "memory"}};
  for (const TaskRow& row : rows) {
    const std::string task = row.task.empty() ? "(unknown)" : row.task;
    if (!row.up) {
      cells.push_back({task, row.address, state_of(row)});
      continue;
    }
    cells.push_back({task, row.address, state_of(row), devices_text(row.up->devices), str_cat(row.up->programs),
                     str_cat(row.up->variables), bytes_text(row.up->variable_bytes), str_cat(row.up->sessions),
                     absl::StrFormat("%.1f", row.rate), bytes_text(row.up->resident_bytes)});
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (size_t r = 0; r < cells.size(); ++r) {
    for (size_t i = 0; i < cells[r].size(); ++i) {
      std::string cell = cells[r][i];
      const std::string space = i + 1 < cells[r].size() ? std::string(widths[i] - cell.size() + 2, ' ') : "";
      if (colour && r > 0 && i == 2 && cell != "no server") {
        cell = (cell == "up" ? "\033[32m" : "\033[31m") + cell + "\033[0m";
      }
      str_append(text, cell, space);
    }
    text += "\n";
  }
  for (const TaskRow& row : rows) {
    if (has_no_server(row)) {
      str_append(text, row.task, " has no server: the chief of parameter servers needs none\n");
    } else if (!row.up) {
      str_append(text, row.task.empty() ? row.address : row.task, " is ", state_of(row),
                 &row == told ? "" : str_cat(": ", name_of(row.down.code()), ": ", row.down.message()), "\n");
    }
    if (row.up && !row.up->lost.empty()) str_append(text, row.task, " refuses work: ", row.up->lost, "\n");
    for (const VariableInfo& variable : row.variables) {
      str_append(text, "  ", row.task, "  ", variable.name, "  ", variable.spec.to_string(), "  ",
                 bytes_text(variable.spec.bytes()), "  version ", variable.version,
                 variable.initialized ? "" : "  (no value)", "\n");
    }
  }
  return text;
}

std::string json_text(const std::vector<TaskRow>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const TaskRow& row : rows) {
    nlohmann::json one{{"task", row.task}, {"address", row.address}, {"up", row.up.has_value()}};
    if (row.up) {
      one.update({{"devices", row.up->devices},
                  {"programs", row.up->programs},
                  {"variables", row.up->variables},
                  {"variable_bytes", row.up->variable_bytes},
                  {"sessions", row.up->sessions},
                  {"requests", row.up->requests},
                  {"requests_per_second", row.rate},
                  {"resident_bytes", row.up->resident_bytes},
                  {"uptime_seconds", row.up->uptime_seconds},
                  {"incarnation", row.up->incarnation}});
      if (!row.up->lost.empty()) one["lost"] = row.up->lost;
    } else {
      one.update({{"code", std::string(name_of(row.down.code()))},
                  {"why", row.down.message()},
                  {"needs_no_server", row.needs_no_server}});
    }
    all.push_back(std::move(one));
  }
  return all.dump(2) + "\n";
}

int show(const StatusFlags& flags) {
  ChannelOptions options;
  if (!flags.credentials.empty()) options.credentials = read_credentials(flags.credentials, flags.name);
  const auto tasks = addresses(flags);
  const bool has_ps = std::ranges::any_of(tasks, [](const auto& task) { return task.first.starts_with("/job:ps/"); });
  std::vector<Known> known;
  for (const auto& [task, address] : tasks) known.push_back({std::make_shared<RpcChannel>(address, task, options)});
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (true) {
    std::vector<std::future<TaskRow>> looks;
    for (size_t i = 0; i < tasks.size(); ++i) {
      looks.push_back(std::async(std::launch::async,
                                 [&, i] { return look(tasks[i].first, tasks[i].second, known[i], flags.variables); }));
    }
    std::vector<TaskRow> rows;
    for (size_t i = 0; i < tasks.size(); ++i) {
      rows.push_back(looks[i].get());
      rows[i].needs_no_server = has_ps && tasks[i].first.starts_with("/job:chief/");
    }
    if (flags.watch && terminal) std::cout << "\033[H\033[2J";
    const auto down = std::ranges::find_if(rows, [](const TaskRow& row) { return !row.up && !has_no_server(row); });
    const TaskRow* const error = flags.watch || down == rows.end() ? nullptr : &*down;
    std::cout << (flags.json ? json_text(rows) : table(rows, terminal, error)) << std::flush;
    if (!flags.watch) {
      if (error == nullptr) return 0;
      std::cerr << "muster: " << error->down << "\n";
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(flags.every));
  }
}

}  // namespace

void add_status(CLI::App& muster) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command =
      muster.add_subcommand("status", "Show the tasks of a cluster: up or down, devices, variables, load");
  command->footer(
      "It ends with 1 if a task is down. The chief of parameter servers has no server, which is no error.\n"
      "Example: muster status --cluster cluster.json, which `muster run --write-cluster cluster.json` writes");
  command->add_option("--target", flags->target, "One task: grpc://host:port");
  command->add_option("--cluster", flags->cluster, "All tasks of a cluster: a file with JSON, or the JSON itself");
  command->add_option("--credentials", flags->credentials, "A directory that `muster certs` has made");
  command->add_option("--name", flags->name, "Whose certificate to show")->capture_default_str();
  command->add_flag("--watch", flags->watch, "Look again and again");
  command->add_option("--every", flags->every, "Seconds between two looks")
      ->check(seconds_between(0.1, 24 * 3600))
      ->capture_default_str();
  command->add_flag("--variables", flags->variables, "List the variables, too");
  command->add_flag("--json", flags->json, "For scripts");
  command->callback([flags] {
    if (const int code = show(*flags); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace muster::tools
