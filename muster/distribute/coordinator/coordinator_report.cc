#include "muster/distribute/coordinator/coordinator_report.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

namespace muster {
namespace {

constexpr double kIdle = 0.7;      // workers that run less than this share of the time want more work
constexpr double kWaiting = 0.35;  // of the time of closures, from which on it matters most
constexpr double kBusy = 0.8;      // of the cores that a parameter server has
constexpr double kFull = 0.95;     // of a machine's: whoever has something to do waits for a core

// Over those that are known.
template <class Of>
double mean(const std::vector<TaskReport>& tasks, const Of& of) {
  double sum = 0;
  int known = 0;
  for (const TaskReport& task : tasks) {
    if (!task.status.ok()) continue;
    sum += of(task);
    ++known;
  }
  return known == 0 ? 0 : sum / known;
}

double running(const CoordinatorReport& report) {
  return mean(report.workers, [](const TaskReport& task) { return task.running; });
}

std::vector<std::string> missing(const CoordinatorReport& report) {
  std::vector<std::string> names;
  for (const auto* tasks : {&report.workers, &report.parameter_servers}) {
    for (const TaskReport& task : *tasks) {
      if (!task.status.ok()) names.push_back(task.task);
    }
  }
  return names;
}

// Of the time of closures.
double share(const CoordinatorReport& report, double TaskReport::*of) {
  const double all = running(report);
  return all == 0 ? 0 : mean(report.workers, [&](const TaskReport& task) { return task.*of; }) / all;
}

double load(const TaskReport& task) { return task.cpu / std::max(1, task.cores); }

const TaskReport* busiest(const std::vector<TaskReport>& tasks) {
  const auto most =
      std::max_element(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) { return load(a) < load(b); });
  return most == tasks.end() ? nullptr : &*most;
}

const TaskReport* on_the_fullest(const std::vector<TaskReport>& tasks) {
  const auto most = std::ranges::max_element(tasks, {}, &TaskReport::machine);
  return most == tasks.end() ? nullptr : &*most;
}

// Of the worker that waits most.
std::string slowest_stage(const CoordinatorReport& report) {
  const auto waits = [](const TaskReport& task) { return task.input_stage.empty() ? -1 : task.input; };
  const auto most = std::ranges::max_element(report.workers, {}, waits);
  if (most == report.workers.end() || most->input_stage.empty()) return "";
  return absl::StrCat(", which are limited by ", most->input_stage);
}

std::string percent(double share) { return absl::StrFormat("%.0f %%", share * 100); }

void add_rows(std::string& table, const std::vector<TaskReport>& tasks) {
  for (const TaskReport& task : tasks) {
    if (!task.status.ok()) {
      absl::StrAppendFormat(&table, "%-32s %s\n", task.task, task.status.message());
      continue;
    }
    absl::StrAppendFormat(&table, "%-32s %6.2f %6d %8s %8s %8s %8s\n", task.task, task.cpu, task.cores,
                          percent(task.machine), percent(task.running), percent(task.input), percent(task.peers));
  }
}

}  // namespace

Limit CoordinatorReport::limit() const {
  if (closures_per_second == 0 && running(*this) == 0) return Limit::kNothing;
  if (running(*this) < kIdle) return missing(*this).empty() ? Limit::kChief : Limit::kMissing;
  if (share(*this, &TaskReport::input) > kWaiting) return Limit::kInput;
  if (share(*this, &TaskReport::peers) <= kWaiting) return Limit::kWorkers;
  const TaskReport* ps = busiest(parameter_servers);
  if (ps == nullptr) return Limit::kWire;
  if (load(*ps) > kBusy) return Limit::kParameterServers;
  return on_the_fullest(parameter_servers)->machine > kFull ? Limit::kMachines : Limit::kWire;
}

std::string CoordinatorReport::sentence() const {
  const std::vector<std::string> gone = missing(*this);
  if (gone.empty() || limit() == Limit::kMissing) return limit_in_words();
  return absl::StrCat(limit_in_words(), "; not there: ", absl::StrJoin(gone, ", "));
}

std::string CoordinatorReport::limit_in_words() const {
  const std::string rate = absl::StrFormat("%.4g closures a second, limited by ", closures_per_second);
  switch (limit()) {
    case Limit::kNothing: return "no closure has run";
    case Limit::kMissing: return absl::StrCat(rate, "tasks that are not there: ", absl::StrJoin(missing(*this), ", "));
    case Limit::kChief:
      return absl::StrFormat("%sthe chief: workers are without work for %s of the time, and it uses %.1f cores", rate,
                             percent(1 - running(*this)), chief_cpu);
    case Limit::kWorkers: return rate + "what the workers compute";
    case Limit::kInput:
      return absl::StrFormat("%sinput: closures wait for their datasets for %s of their time%s", rate,
                             percent(share(*this, &TaskReport::input)), slowest_stage(*this));
    case Limit::kParameterServers: {
      const TaskReport& ps = *busiest(parameter_servers);
      return absl::StrFormat(
          "%sthe processors of parameter servers: %s keeps %.1f cores of %d busy, closures wait for %s "
          "of their time",
          rate, ps.task, ps.cpu, ps.cores, percent(share(*this, &TaskReport::peers)));
    }
    case Limit::kMachines: {
      const TaskReport& ps = *on_the_fullest(parameter_servers);
      return absl::StrFormat(
          "%stoo many tasks on one machine: all cores of the machine of %s are busy, closures wait for parameter "
          "servers for %s of their time",
          rate, ps.task, percent(share(*this, &TaskReport::peers)));
    }
    case Limit::kWire:
      return absl::StrFormat(
          "%sthe wire: closures wait for parameter servers, which are not busy, for %s of their time", rate,
          percent(share(*this, &TaskReport::peers)));
  }
  return rate;
}

std::string CoordinatorReport::to_string() const {
  std::string table = sentence() + "\n";
  absl::StrAppendFormat(&table, "%-32s %6s %6s %8s %8s %8s %8s\n", absl::StrFormat("over %.1f s", seconds), "cpu",
                        "cores", "machine", "running", "input", "peers");
  absl::StrAppendFormat(&table, "%-32s %6.2f\n", "this process", chief_cpu);
  add_rows(table, workers);
  add_rows(table, parameter_servers);
  return table;
}

}  // namespace muster
