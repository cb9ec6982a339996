// What a job spends its time on.
#pragma once

#include <string>
#include <vector>

#include "muster/base/status.h"

namespace muster {

// One task, over the time of a report.
struct TaskReport {
  std::string task{};
  Status status{};            // why nothing is known of it, if so
  double cpu = 0;             // cores that its process has kept busy
  int cores = 0;              // that it may use for ops
  double machine = 0;         // the share of its machine's cores that are busy, whoever keeps them so
  double running = 0;         // the share of the time in which it ran closures, those included that it still runs
  double input = 0;           // the share in which these waited for elements of their datasets
  double peers = 0;           // and for other tasks
  std::string input_stage{};  // of the dataset that they waited for most, the one that limits it
};

// What is nearest to its limit, so that more of it would help most.
enum class Limit {
  kNothing,           // no closure has run, and none runs
  kMissing,           // tasks that are lost or do not answer keep the others waiting
  kChief,             // workers are without work: the program schedules too little, or too slowly
  kWorkers,           // they compute
  kInput,             // they wait for their datasets
  kParameterServers,  // they wait for parameter servers whose processors are busy
  kMachines,          // they wait for parameter servers to which others on their machines leave no core
  kWire,              // they wait for what is under way between them
};

struct CoordinatorReport {
  double seconds = 0;  // since the last one, or since the coordinator was made
  double closures_per_second = 0;
  double chief_cpu = 0;  // cores that this process has kept busy
  std::vector<TaskReport> workers{}, parameter_servers{};

  Limit limit() const;
  std::string sentence() const;   // that says what limits the rate, and which tasks are not there
  std::string to_string() const;  // the sentence, and a table of the tasks

 private:
  std::string limit_in_words() const;
};

}  // namespace muster
