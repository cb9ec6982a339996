// For tests: tasks of this process that reach each other as those of several would.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/strings.h"
#include "muster/base/test_wait.h"
#include "muster/collective/task_group.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::testing_support {

// Returns once a thread of this process waits for something that does not come: it sleeps, and is not woken between
// several looks. `thread` is what gettid() gives there. False: it never does, and nobody has more patience.
inline bool comes_to_wait(pid_t thread) {
  constexpr int kLooks = 5;
  std::string before;
  int alike = 0;
  return eventually([&] {
    bool sleeps = false;
    std::string waits;  // so many, so far
    std::ifstream status(str_cat("/proc/self/task/", thread, "/status"));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("State:")) sleeps = line.find("(sleeping)") != std::string::npos;
      if (line.starts_with("voluntary_ctxt_switches:")) waits = line;
    }
    alike = sleeps && waits == before ? alike + 1 : 0;
    before = waits;
    return alike == kLooks;
  });
}

class Tasks : public Peers {
 public:
  static std::string name(int rank) { return str_cat("/job:worker/replica:0/task:", rank); }
  static Status failure_of(const std::function<void()>& what) {
    try {
      what();
    } catch (...) {
      return status_of(std::current_exception());
    }
    return {};
  }

  void start_tasks(int count) {
    for (int rank = 0; rank < count; ++rank) start_task(rank);
  }
  void start_task(int rank) {
    workers_[name(rank)] =
        std::make_shared<LocalWorker>(LocalWorkerOptions{.devices = {.task = name(rank), .cpus = 1, .gpus = false}});
  }
  std::shared_ptr<Worker> worker(const std::string& task) override { return workers_.at(task); }

  // `like`, for one of so many.
  static TaskGroupOptions of_rank(int rank, int count, TaskGroupOptions like = {}) {
    like.rank = rank;
    for (int i = 0; i < count; ++i) {
      like.tasks.push_back(name(i));
      like.addresses.emplace_back("127.0.0.1:1");
    }
    return like;
  }
  std::unique_ptr<TaskGroup> join(TaskGroupOptions options) {
    LocalWorker& own = *workers_.at(options.tasks.at(static_cast<size_t>(options.rank)));
    return std::make_unique<TaskGroup>(std::move(options), own.rendezvous(), own.incarnation(), *this);
  }
  // Each rank on a thread of its own. Returns what they fail with.
  std::vector<Status> together(int count, const std::function<TaskGroupOptions(int rank)>& options,
                               const std::function<void(TaskGroup&)>& member) {
    std::vector<Status> failures(static_cast<size_t>(count));
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < count; ++rank) {
      ranks.emplace_back(
          [&, rank] { failures[static_cast<size_t>(rank)] = failure_of([&] { member(*join(options(rank))); }); });
    }
    ranks.clear();
    return failures;
  }

 protected:
  std::map<std::string, std::shared_ptr<LocalWorker>> workers_;
};

}  // namespace muster::testing_support
