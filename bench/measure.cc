#include "bench/measure.h"

#include <absl/strings/str_format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "muster/base/status.h"

namespace muster::bench {
namespace {

constexpr double kContended = 0.15;  // cores of other programs above which a trial is not trusted
constexpr int kExtraTrials = 3;      // while there was none to trust

struct CpuTime {
  double all = 0;   // seconds that cores of the machine were busy
  double ours = 0;  // of which this process group
};

// The words of a line of /proc/<pid>/stat after the command's name, which may have spaces and brackets in it.
std::vector<std::string> stat_words(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

CpuTime cpu_time() {
  const double per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  CpuTime time;
  std::ifstream in("/proc/stat");
  std::string cpu;
  in >> cpu;
  for (int column = 0; column < 8; ++column) {
    double ticks = 0;
    in >> ticks;
    const bool idle = column == 3 || column == 4;
    if (!idle) time.all += ticks / per_second;
  }
  const std::string group = std::to_string(getpgrp());
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const std::vector<std::string> words = stat_words(entry.path() / "stat");
    if (words.size() > 12 && words[2] == group) time.ours += (std::stod(words[11]) + std::stod(words[12])) / per_second;
  }
  return time;
}

double five_digits(double value) { return std::strtod(absl::StrFormat("%.5g", value).c_str(), nullptr); }

}  // namespace

// The best trial of a figure so far.
class Bench::Trials {
 public:
  struct Trial {
    double value;
    double others;  // cores that other programs used
  };

  explicit Trials(bool more_is_better) : more_is_better_(more_is_better) {}

  void add(const std::function<double()>& measure) {
    const CpuTime before = cpu_time();
    const auto begin = std::chrono::steady_clock::now();
    Trial trial{measure(), 0};
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const CpuTime after = cpu_time();
    trial.others = std::max(0.0, ((after.all - before.all) - (after.ours - before.ours)) / took);
    if (better(trial, any_)) any_ = trial;
    if (trial.others <= kContended && better(trial, quiet_)) quiet_ = trial;
    ++count_;
  }

  bool enough(int repeats) const { return count_ >= repeats + (quiet_ ? 0 : kExtraTrials); }
  const Trial& best() const { return quiet_ ? *quiet_ : *any_; }

 private:
  bool better(const Trial& trial, const std::optional<Trial>& known) const {
    return !known || (more_is_better_ ? trial.value > known->value : trial.value < known->value);
  }

  const bool more_is_better_;
  int count_ = 0;
  std::optional<Trial> quiet_, any_;
};

Bench::Bench(std::string workload, BenchOptions options) : workload_(std::move(workload)), options_(options) {}

Figure rate_of(const Metric& metric, double count, std::function<void()> work) {
  return {metric, [count, work = std::move(work)] { return count / seconds(work); }};
}

double Bench::rate(const Metric& metric, double count, const std::function<void()>& work) {
  return in_turn({rate_of(metric, count, work)})[0];
}

double Bench::most(const Metric& metric, const std::function<double()>& measure) {
  return in_turn({{metric, measure}})[0];
}

double Bench::least(const Metric& metric, const std::function<double()>& measure) {
  return in_turn({{metric, measure, /*more_is_better=*/false}})[0];
}

void Bench::once(const Metric& metric, double value) {
  nlohmann::ordered_json line{{"peer", metric.peer},
                              {"workload", workload_},
                              {"metric", metric.name},
                              {"value", five_digits(value)},
                              {"unit", metric.unit}};
  std::cout << line.dump() << std::endl;
}

std::vector<double> Bench::in_turn(const std::vector<Figure>& figures) {
  std::vector<Trials> trials;
  for (const Figure& figure : figures) trials.emplace_back(figure.more_is_better);
  bool all_done = false;
  while (!all_done) {
    all_done = true;
    for (size_t i = 0; i < figures.size(); ++i) {
      if (trials[i].enough(options_.repeats)) continue;
      trials[i].add(figures[i].measure);
      all_done = false;
    }
  }
  std::vector<double> best;
  for (size_t i = 0; i < figures.size(); ++i) best.push_back(print(figures[i].metric, trials[i]));
  return best;
}

double Bench::print(const Metric& metric, const Trials& trials) {
  once(metric, trials.best().value);
  if (trials.best().others > kContended) {
    std::cerr << absl::StrFormat("CONTENDED: %s %s: other programs used %.2f cores", workload_, metric.name,
                                 trials.best().others)
              << std::endl;
  }
  return trials.best().value;
}

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_us(int count, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(seconds(work) * 1e6);
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[count / 2];
}

double in_child(const std::function<double()>& measure) {
  int ends[2];
  if (pipe(ends) != 0) throw internal("pipe: ", strerror(errno));
  std::cout.flush();
  const pid_t child = fork();
  if (child < 0) throw internal("fork: ", strerror(errno));
  if (child == 0) {
    close(ends[0]);
    int code = 1;
    try {
      const double value = measure();
      code = write(ends[1], &value, sizeof value) == sizeof value ? 0 : 1;
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    _exit(code);
  }
  close(ends[1]);
  double value = 0;
  const bool told = read(ends[0], &value, sizeof value) == sizeof value;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!told || status != 0) throw internal("the process that measured has failed");
  return value;
}

double peak_memory() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  throw internal("/proc/self/status has no VmHWM");
}

void check_fell(const std::string& what, double first, double last) {
  if (!(last < first)) throw internal(what, ": the loss has not fallen, it was ", first, " and is ", last);
}

}  // namespace muster::bench
