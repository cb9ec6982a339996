#include "muster/train/checkpoints.h"

#include <future>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/distribute/ps_variables.h"
#include "muster/graph/split.h"

namespace muster {
namespace {

using ByTask = std::map<std::string, std::vector<StoredVariable>>;

// Parts that are alike: all of them, or only the first, for all.
enum class Alike { kAll, kFirst };

ByTask variables_by_task(const PsVariables& variables, Alike alike) {
  ByTask by_task;
  for (const auto& state : variables.all()) {
    const auto& part = state->part_of;
    if (alike == Alike::kFirst && part && part->alike && part->first_row > 0) continue;
    by_task[task_of_device(state->options.device)].push_back(variables.stored(*state));
  }
  return by_task;
}

// Asks all tasks at once. Throws the first error.
template <class Ask>
auto ask_all(Peers& peers, const ByTask& by_task, const Ask& ask) {
  using Answer = std::invoke_result_t<Ask, Worker&, const std::vector<StoredVariable>&>;
  std::vector<std::future<Answer>> answers;
  for (const auto& [task, variables] : by_task) {
    answers.push_back(std::async(std::launch::async,
                                 [&ask, &variables, worker = peers.worker(task)] { return ask(*worker, variables); }));
  }
  for (auto& answer : answers) answer.wait();
  return answers;
}

}  // namespace

Checkpoints::Checkpoints(const ParameterServerStrategy& strategy, CheckpointsOptions options)
    : strategy_(strategy), options_(std::move(options)), directory_(options_.directory) {
  if (options_.keep < 1) throw invalid_argument("Checkpoints: keep is ", options_.keep, ", expected 1 or more");
}

std::string Checkpoints::save(int64_t step, const std::map<std::string, std::string>& metadata) {
  const std::string temporary = directory_.begin(step);
  try {
    CheckpointIndex index{.step = step, .metadata = metadata};
    for (auto& answer : ask_all(*strategy_.peers(), variables_by_task(*strategy_.variables(), Alike::kFirst),
                                [&](Worker& worker, const std::vector<StoredVariable>& variables) {
                                  return worker.save(temporary, variables);
                                })) {
      for (ShardEntry& entry : answer.get()) index.entries.push_back(std::move(entry));
    }
    const std::string path = directory_.commit(temporary, std::move(index));
    strategy_.variables()->fill_new_from("");
    directory_.keep(options_.keep);
    return path;
  } catch (...) {
    directory_.abandon(temporary);
    throw;
  }
}

void Checkpoints::restore_from(const std::string& path) {
  strategy_.variables()->accept_restarts();
  for (auto& answer : ask_all(
           *strategy_.peers(), variables_by_task(*strategy_.variables(), Alike::kAll),
           [&](Worker& worker, const std::vector<StoredVariable>& variables) { worker.restore(path, variables); })) {
    answer.get();
  }
  strategy_.variables()->fill_new_from(path);
}

std::optional<int64_t> Checkpoints::restore() {
  std::vector<Checkpoint> all = directory_.all();
  for (auto newest = all.rbegin(); newest != all.rend(); ++newest) {
    try {
      restore_from(newest->path);
      return newest->step;
    } catch (const Error& error) {
      if (error.code() != StatusCode::kDataLoss || std::next(newest) == all.rend()) throw;
      MUSTER_LOG(warning) << newest->path << " is damaged, the one before it is taken: " << error.what();
    }
  }
  return std::nullopt;
}

}  // namespace muster
