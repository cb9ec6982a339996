#include "muster/distribute/servers/ps_checkpoints.h"

#include <exception>
#include <future>
#include <set>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/distribute/servers/lost_with_server.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/placement/split.h"
#include "muster/trace/variable_programs.h"

namespace muster {
namespace {

// Asks all tasks at once, and waits for all of them.
template <class Ask>
auto ask_all(Peers& peers, const std::map<std::string, std::vector<StoredVariable>>& by_task, const Ask& ask) {
  using Answer = std::invoke_result_t<Ask, VariableKeeper&, const std::vector<StoredVariable>&>;
  std::vector<std::future<Answer>> answers;
  for (const auto& [task, variables] : by_task) {
    answers.push_back(std::async(std::launch::async,
                                 [&ask, &variables, worker = peers.worker(task)] { return ask(*worker, variables); }));
  }
  for (auto& answer : answers) answer.wait();
  return answers;
}

}  // namespace

void PsCheckpoints::check_held() const {
  std::set<std::string> tasks;
  for (const auto& state : options_.all()) tasks.insert(task_of_device(state->options.device));
  for (const std::string& task : tasks) {
    try {
      incarnations_.check_alive(task);
    } catch (const Error& error) {
      throw failed_precondition("nobody has the variables of ", task, " any more: ", error.status().message());
    }
  }
}

StoredVariable PsCheckpoints::stored(const Variable::State& state) const {
  // Of parts that are alike a checkpoint has one, for all.
  const auto part_of = state.part_of && state.part_of->alike
                           ? Variable::State::PartOf{state.part_of->name, state.spec.sizes, 0}
                           : state.part_of;
  return {.name = name_in_container(options_.container, state.options.name),
          .spec = state.spec,
          .device = state.options.device,
          .whole = part_of ? part_of->name : state.options.name,
          .whole_sizes = part_of ? part_of->sizes : state.spec.sizes,
          .first_row = part_of ? part_of->first_row : 0};
}

SavedVariables::Write PsCheckpoints::begin_save(const Only& only) const {
  ChosenVariables chosen(only);
  StoredByTask by_task;
  std::vector<std::shared_ptr<Variable::State>> held;  // or their servers might let go of them
  for (const auto& state : options_.all()) {
    const auto& part = state->part_of;
    if (part && part->alike && part->first_row > 0) continue;  // the first one is stored, for all
    StoredVariable one = stored(*state);
    if (!chosen.take(one)) continue;
    by_task[task_of_device(state->options.device)].push_back(std::move(one));
    held.push_back(state);
  }
  chosen.check_all_taken();
  return [peers = options_.peers, by_task = std::move(by_task), held = std::move(held)](const std::string& directory,
                                                                                        const SaveOptions& options) {
    std::vector<ShardEntry> entries;
    try {
      for (auto& answer :
           ask_all(*peers, by_task, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& variables) {
             return keeper.save(directory, variables, options);
           })) {
        for (ShardEntry& entry : answer.get()) entries.push_back(std::move(entry));
      }
    } catch (const Error& error) {
      throw Error(lost_with_server(error.status()));
    }
    return entries;
  };
}

void PsCheckpoints::check_directory(const std::string& directory) const {
  (void)incarnations_.ask();  // waits for those that are being restarted, as the restore does that mostly follows
  StoredByTask nothing;
  for (const auto& state : options_.all()) nothing[task_of_device(state->options.device)];
  for (auto& answer :
       ask_all(*options_.peers, nothing, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& none) {
         return keeper.save(directory, none, {});  // looks at the path, and writes no file
       })) {
    answer.get();
  }
}

void PsCheckpoints::restore(const std::string& checkpoint, const StoredByTask& by_task, RestoreStage stage) const {
  auto answers =
      ask_all(*options_.peers, by_task, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& variables) {
        keeper.restore(checkpoint, variables, stage);
      });
  StoredByTask ready;  // nothing of each task that has said that it can
  std::exception_ptr failure;
  auto task = by_task.begin();
  for (auto& answer : answers) {
    try {
      answer.get();
      ready[task->first];
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    ++task;
  }
  if (!failure) return;
  if (stage == RestoreStage::kCheck) drop_staged(checkpoint, ready);
  std::rethrow_exception(failure);
}

void PsCheckpoints::drop_staged(const std::string& checkpoint, const StoredByTask& nothing) const {
  for (auto& answer :
       ask_all(*options_.peers, nothing, [&](VariableKeeper& keeper, const std::vector<StoredVariable>& none) {
         keeper.restore(checkpoint, none, RestoreStage::kApply);
       })) {
    try {
      answer.get();
    } catch (const Error&) {  // it has let go of them, or is gone
    }
  }
}

void PsCheckpoints::restore(Source source) {
  ChosenVariables chosen(source.only);
  std::set<std::string> names;
  StoredByTask by_task;
  size_t count = 0;
  for (const auto& state : options_.all()) {
    StoredVariable one = stored(*state);
    if (!chosen.take(one)) continue;
    names.insert(one.whole);
    if (!source.variables.contains(one.whole)) continue;
    by_task[task_of_device(state->options.device)].push_back(std::move(one));
    ++count;
  }
  chosen.check_all_taken();
  std::set<std::string> unused = unused_after_match(source, names);
  PsIncarnations::Known now = incarnations_.ask();
  restore(source.checkpoint, by_task, RestoreStage::kCheck);
  incarnations_.take(std::move(now));
  restore(source.checkpoint, by_task, RestoreStage::kApply);
  if (!source.silent) MUSTER_LOG(info) << "restored " << count << " variables from " << source.checkpoint;
  if (!source.only) later_.begin(std::move(source), std::move(unused));
}

void PsCheckpoints::fill(const std::vector<std::shared_ptr<Variable::State>>& parts) {
  const std::string name = stored(*parts.at(0)).whole;
  const std::optional<std::string> checkpoint = later_.checkpoint_for(name);
  if (!checkpoint) return;
  StoredByTask by_task;
  for (const auto& part : parts) by_task[task_of_device(part->options.device)].push_back(stored(*part));
  restore(*checkpoint, by_task, RestoreStage::kCheck);
  restore(*checkpoint, by_task, RestoreStage::kApply);
  later_.filled(name);
}

}  // namespace muster
