#include <ATen/Parallel.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "muster/base/status.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

struct Options {
  std::vector<std::string> workloads;
  std::string part;
  int repeats = 3;
  bool list = false;
  bool here = false;
};

void list_workloads() {
  for (const bench::Workload& workload : bench::workloads()) {
    std::cout << workload.name << "\n  " << workload.about << "\n  parts:";
    for (const bench::Part& part : workload.parts) std::cout << " " << part.name;
    std::cout << "\n";
  }
}

const bench::Workload& workload_named(const std::string& name) {
  if (const bench::Workload* workload = bench::find_workload(name)) return *workload;
  std::string known;
  for (const bench::Workload& workload : bench::workloads())
    str_append(known, known.empty() ? "" : ", ", workload.name);
  throw CLI::ValidationError(str_cat("WORKLOAD: \"", name, "\" is none of ", known));
}

const bench::Part& part_named(const bench::Workload& workload, const std::string& name) {
  if (const bench::Part* part = bench::find_part(workload, name)) return *part;
  std::string known;
  for (const bench::Part& part : workload.parts) str_append(known, known.empty() ? "" : ", ", part.name);
  throw CLI::ValidationError(str_cat("--part: ", workload.name, " has no part \"", name, "\", but ", known));
}

// Runs the part in a process of its own and waits for it. Returns whether it went well.
bool run_in_child(const bench::Workload& workload, const bench::Part& part, int repeats) {
  const std::string threads = std::to_string(part.threads), trials = std::to_string(repeats);
  setenv("OMP_NUM_THREADS", threads.c_str(), /*overwrite=*/1);
  std::vector<const char*> call{"muster",          "bench",     workload.name.c_str(), "--here", "--part",
                                part.name.c_str(), "--repeats", trials.c_str(),        nullptr};
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(call.data()), environ);
  if (failed != 0) throw internal("cannot start a process for ", workload.name, " ", part.name, ": ", strerror(failed));
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0) return true;
  std::cerr << "FAILED: " << workload.name << " " << part.name << " ("
            << (WIFSIGNALED(status) ? str_cat("signal ", WTERMSIG(status)) : str_cat("exit ", WEXITSTATUS(status)))
            << ")\n";
  return false;
}

void run(const Options& options) {
  if (options.list) return list_workloads();
  if (options.workloads.empty()) throw CLI::RequiredError("WORKLOAD (--list names them)");
  struct Job {
    const bench::Workload& workload;
    const bench::Part& part;
  };
  std::vector<Job> jobs;
  for (const std::string& name : options.workloads) {
    const bench::Workload& workload = workload_named(name);
    if (!options.part.empty()) {
      jobs.push_back({workload, part_named(workload, options.part)});
    } else {
      for (const bench::Part& part : workload.parts) jobs.push_back({workload, part});
    }
  }
  bool all_went_well = true;
  for (const Job& job : jobs) {
    if (options.here) {
      at::set_num_threads(job.part.threads);
      bench::Bench measure(job.workload.name, {.repeats = options.repeats});
      job.workload.run(job.part, measure);
    } else {
      all_went_well = run_in_child(job.workload, job.part, options.repeats) && all_went_well;
    }
  }
  if (!all_went_well) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench(CLI::App& muster) {
  auto options = std::make_shared<Options>();
  CLI::App* bench = muster.add_subcommand("bench", "Measure workloads; each figure is a line of JSON");
  bench->add_option("WORKLOAD", options->workloads, "What to measure");
  bench->add_flag("--list", options->list, "Name the workloads and their parts");
  bench->add_option("--part", options->part, "Only this part of the workload");
  bench->add_option("--repeats", options->repeats, "Trials per figure; the best one counts")
      ->check(CLI::Range(1, 1000))
      ->envname("REPEATS")
      ->capture_default_str();
  bench->add_flag("--here", options->here, "In this process, not in one of its own")->group("");
  add_simulate(*bench);
  bench->callback([options, bench] {
    if (bench->get_subcommands().empty()) run(*options);
  });
}

}  // namespace muster::tools
