#include "muster/distribute/saved_variables.h"

#include "muster/base/log.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/local_worker.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

class VariablesHere : public SavedVariables {
 public:
  std::vector<ShardEntry> save(const std::string& directory, SavePace) const override {
    std::vector<StoredVariable> stored;
    for (const auto& state : Variable::State::all_here()) {
      const auto whole = state->copy_of.lock();
      if (!whole || whole->copies[0].state() == state) stored.push_back(stored_as(*state));
    }
    return save_variables(local_worker().store(), local_worker().devices().task(), directory, stored);
  }

  void restore(Source source) override {
    std::set<std::string> missing, unused = source.variables;
    std::vector<StoredVariable> stored;
    for (const auto& state : Variable::State::all_here()) {
      StoredVariable one = stored_as(*state);
      unused.erase(one.whole);
      if (source.variables.contains(one.whole)) {
        stored.push_back(std::move(one));
      } else {
        missing.insert(one.whole);
      }
    }
    if (!missing.empty()) {
      if (!source.allow_missing) throw missing_from(source.checkpoint, missing, unused);
      MUSTER_LOG(warning) << "checkpoint " << source.checkpoint << " has no values for " << listed(missing)
                          << ", which stay as they are";
    }
    LocalWorker& worker = local_worker();
    StagedValues staged;
    for (const RestoreStage stage : {RestoreStage::kCheck, RestoreStage::kApply}) {
      restore_variables(worker.store(), worker.devices(), source.checkpoint, stored, stage, &staged);
    }
    MUSTER_LOG(info) << "restored " << stored.size() << " variables from " << source.checkpoint;
    if (unused.empty()) return;
    MUSTER_LOG(warning) << "checkpoint " << source.checkpoint << " also has values for " << listed(unused)
                        << ", which are not there: make models and optimizers before restore()";
  }

 private:
  static StoredVariable stored_as(const Variable::State& state) {
    const auto whole = state.copy_of.lock();
    return {.name = state.options.name,
            .spec = state.spec,
            .device = canonical_device(state.options.device, local_worker().devices().default_name()),
            .whole = whole ? whole->options.name : state.options.name,
            .whole_sizes = state.spec.sizes};
  }
};

}  // namespace

std::shared_ptr<SavedVariables> variables_of_this_process() {
  static const auto here = std::make_shared<VariablesHere>();
  return here;
}

std::string listed(const std::set<std::string>& names) {
  constexpr size_t kMost = 10;
  std::string text;
  size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kMost) return str_cat(text, " and ", names.size() - kMost, " more");
    str_append(text, count == 1 ? "\"" : ", \"", name, "\"");
  }
  return text;
}

Error missing_from(const std::string& checkpoint, const std::set<std::string>& missing,
                   const std::set<std::string>& unused) {
  return not_found("checkpoint ", checkpoint, " has no values for ", listed(missing),
                   unused.empty() ? "" : str_cat(", but for ", listed(unused), ", which nobody has asked for"),
                   "; RestoreOptions::allow_missing lets variables begin anew");
}

}  // namespace muster
