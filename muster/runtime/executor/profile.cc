#include "muster/runtime/executor/profile.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"

namespace muster {
namespace {

double microseconds(Profile::Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// What is in one row does not overlap. For events in the order of their begin.
class RowsOfCalls {
 public:
  std::string row_of(const Profile::Event& event) {
    auto free = std::ranges::find_if(ends_, [&](Profile::Clock::time_point end) { return end <= event.begin; });
    if (free == ends_.end()) free = ends_.emplace(ends_.end());
    *free = event.end;
    const auto number = free - ends_.begin();
    return number == 0 ? event.device : str_cat(event.device, " (", number + 1, ")");
  }

 private:
  std::vector<Profile::Clock::time_point> ends_;
};

}  // namespace

void Profile::add(Event event) {
  absl::MutexLock lock(&mu_);
  events_.push_back(std::move(event));
}

std::vector<Profile::Event> Profile::events() const {
  absl::MutexLock lock(&mu_);
  return events_;
}

void Profile::add_input(const InputTiming& during) {
  absl::MutexLock lock(&mu_);
  input_.add(during);
}

InputTiming Profile::input() const {
  absl::MutexLock lock(&mu_);
  return input_;
}

std::string Profile::chrome_trace() const {
  std::vector<Event> events = this->events();
  std::ranges::stable_sort(events, {}, &Event::begin);
  nlohmann::json rows = nlohmann::json::array();
  std::map<std::string, int> row_of;
  RowsOfCalls calls;
  for (const Event& event : events) {
    const std::string name = event.device == kOtherTasks ? calls.row_of(event) : event.device;
    auto [row, is_new] = row_of.emplace(name, static_cast<int>(row_of.size()));
    if (is_new) {
      rows.push_back(
          {{"ph", "M"}, {"name", "thread_name"}, {"pid", 0}, {"tid", row->second}, {"args", {{"name", name}}}});
    }
    rows.push_back({{"ph", "X"},
                    {"name", event.op},
                    {"cat", "op"},
                    {"pid", 0},
                    {"tid", row->second},
                    {"ts", microseconds(event.begin - events.front().begin)},
                    {"dur", microseconds(event.end - event.begin)}});
  }
  return nlohmann::json{{"traceEvents", rows}, {"displayTimeUnit", "ns"}}.dump();
}

std::string Profile::summary() const {
  struct Total {
    double us = 0;
    int count = 0;
  };
  std::map<std::string, Total> ops, calls;
  double all = 0;
  for (const Event& event : events()) {
    const double us = microseconds(event.end - event.begin);
    const bool is_call = event.device == kOtherTasks;
    Total& total = (is_call ? calls : ops)[event.op];
    total.us += us;
    ++total.count;
    if (!is_call) all += us;
  }
  std::string text = absl::StrFormat("%10s %6s %7s  %s\n", "us", "share", "count", "op");
  const auto by_time = [](const std::map<std::string, Total>& totals) {
    std::vector<std::pair<std::string, Total>> rows(totals.begin(), totals.end());
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
    return rows;
  };
  for (const auto& [op, total] : by_time(ops)) {
    absl::StrAppendFormat(&text, "%10.1f %5.1f%% %7d  %s\n", total.us, 100 * total.us / all, total.count, op);
  }
  if (!calls.empty()) text += "until other tasks had answered, while ops may have run:\n";
  for (const auto& [op, total] : by_time(calls)) {
    absl::StrAppendFormat(&text, "%10.1f        %7d  %s\n", total.us, total.count, op);
  }
  const InputTiming input = this->input();
  if (input.elements == 0) return text;
  absl::StrAppendFormat(&text, "waited for data %.1f us, for %d elements, of which:\n", input.waited * 1e6,
                        input.elements);
  std::vector<StageTiming> stages = input.stages;
  std::ranges::stable_sort(stages, std::ranges::greater(), &StageTiming::load);
  double load = 0;
  for (const StageTiming& stage : stages) load += stage.load();
  for (const StageTiming& stage : stages) {
    if (stage.seconds <= 0) continue;
    absl::StrAppendFormat(&text, "%10.1f %5.1f%% %7d  %s\n", stage.load() * 1e6, 100 * stage.load() / load,
                          stage.elements, stage.name);
  }
  return text;
}

}  // namespace muster
