// Timing as the peers' scripts do it, so that the figures can stand side by side: the best of several trials, with an
// eye on what else runs on the machine.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace muster::bench {

struct Metric {
  std::string name;
  std::string unit;             // "samples/s", "us", …
  std::string peer = "muster";  // whose figure it is: "libtorch" for eager code that is measured beside ours
};

struct BenchOptions {
  int repeats = 3;  // trials per figure
};

struct Figure {
  Metric metric;
  std::function<double()> measure;
  bool more_is_better = true;
};

// In units of work per second: `work` does `count` of them.
Figure rate_of(const Metric& metric, double count, std::function<void()> work);

// Measures and prints the figures of one workload, each as a line of JSON on stdout. A figure that was taken while
// other programs used the CPU is marked with a line "CONTENDED: …" on stderr.
class Bench {
 public:
  Bench(std::string workload, BenchOptions options);

  // `work` does `count` units of work; the figure is the best number of units per second. Returns it.
  double rate(const Metric& metric, double count, const std::function<void()>& work);
  // The best of each, for figures that are to be compared: their trials take turns, so that a machine that becomes
  // slower does so for all of them. Returns them.
  std::vector<double> in_turn(const std::vector<Figure>& figures);
  // The smallest of what `measure` returns.
  double least(const Metric& metric, const std::function<double()>& measure);
  // What was measured once.
  void once(const Metric& metric, double value);
  // The largest.
  double most(const Metric& metric, const std::function<double()>& measure);

 private:
  class Trials;
  double print(const Metric& metric, const Trials& trials);

  const std::string workload_;
  const BenchOptions options_;
};

// Seconds since then.
inline double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds that `work` takes.
double seconds(const std::function<void()>& work);

// The median time of `count` calls of `work`, in microseconds.
double median_us(int count, const std::function<void()>& work);

// What `measure` returns in a child of this process. REQUIRES: this process has not run an op of libtorch yet, whose
// threads would be missing in the child.
double in_child(const std::function<double()>& measure);

// The most memory that this process has had, in MiB.
double peak_memory();

// Throws Error{kInternal} if a loss has not fallen: a step that learns nothing is no step to measure.
void check_fell(const std::string& what, double first, double last);

}  // namespace muster::bench
