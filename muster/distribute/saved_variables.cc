#include "muster/distribute/saved_variables.h"

#include <ATen/ops/zeros.h>

#include <set>
#include <utility>

#include "muster/base/log.h"
#include "muster/distribute/servers/delayed_restore.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/variable.h"
#include "muster/trace/variable_scope.h"

namespace muster {
namespace {

class VariablesHere : public SavedVariables, public VariableFiller, public std::enable_shared_from_this<VariablesHere> {
 public:
  Write begin_save(const Only& only) const override {
    ChosenVariables chosen(only);
    std::vector<StoredVariable> stored;
    std::vector<std::shared_ptr<Variable::State>> states;
    for (const auto& state : Variable::State::all_here()) {
      const auto whole = state->copy_of.lock();
      if (whole && whole->copies[0].state() != state) continue;
      StoredVariable one = stored_as(*state);
      if (!chosen.take(one)) continue;
      if (whole) check_has_one_value(*whole);
      states.push_back(state);
      stored.push_back(std::move(one));
    }
    chosen.check_all_taken();
    Cells cells;  // after all checks: what is put together here, other workers put together with this one
    for (const auto& state : states) {
      const auto whole = state->copy_of.lock();
      cells.push_back(whole && whole->is_put_together() ? put_together(*state, whole) : state->cell);
    }
    return [stored = std::move(stored), cells = std::move(cells)](const std::string& directory,
                                                                  const SaveOptions& options) {
      return save_variables(cells, local_worker().devices().task(), directory, stored, options);
    };
  }

  void restore(Source source) override {
    ChosenVariables chosen(source.only);
    std::set<std::string> names, restored;
    std::vector<StoredVariable> stored;
    std::vector<std::shared_ptr<Variable::State>> given;
    for (const auto& state : Variable::State::all_here()) {
      StoredVariable one = stored_as(*state);
      if (!chosen.take(one)) continue;
      names.insert(one.whole);
      if (!source.variables.contains(one.whole)) continue;
      restored.insert(one.whole);
      stored.push_back(std::move(one));
      given.push_back(state);
    }
    chosen.check_all_taken();
    std::set<std::string> unused = unused_after_match(source, names);
    give(source.checkpoint, stored);
    empty_shares(given);
    if (!source.silent) {
      MUSTER_LOG(info) << "restored " << restored.size() << " variables from " << source.checkpoint;
    }
    if (source.only) return;
    later_.begin(std::move(source), std::move(unused));
    set_variable_filler(shared_from_this());
  }

  void fill(const std::vector<std::shared_ptr<Variable::State>>& copies) override {
    std::vector<StoredVariable> stored;
    for (const auto& state : copies) stored.push_back(stored_as(*state));
    const std::string& name = stored.at(0).whole;
    const std::optional<std::string> checkpoint = later_.checkpoint_for(name);
    if (!checkpoint) return;
    give(*checkpoint, stored);
    empty_shares(copies);
    later_.filled(name);
  }

  void check_all_used() const override { later_.check_all_used(); }
  void end_filling() override {
    set_variable_filler(nullptr);
    later_.end();
  }
  void restorer_is_gone(const void* restorer) override {
    if (later_.is_from(restorer)) end_filling();
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

  static void check_has_one_value(const Variable::State& whole) {
    if (!whole.is_put_together() || whole.options.aggregation != Aggregation::kNone) return;
    throw invalid_argument("variable \"", whole.options.name, "\" cannot be saved: each of ",
                           whole.copies.size() * static_cast<size_t>(whole.across.size),
                           " replicas has its own (Synchronization::kOnRead), and nothing says what they are together; "
                           "expected VariableOptions::aggregation to be kSum, kMean or kOnlyFirstReplica, or "
                           "CheckpointsOptions::objects without it");
  }

  // What is saved of a variable of which each replica has a value of its own.
  static std::shared_ptr<VariableCell> put_together(const Variable::State& first,
                                                    const std::shared_ptr<Variable::State>& whole) {
    auto now = std::make_shared<VariableCell>(first.options.name, first.spec, first.cell->device());
    now->assign(Variable(whole).value());
    return now;
  }

  // What they were given is what all copies are together.
  static void empty_shares(const std::vector<std::shared_ptr<Variable::State>>& given) {
    for (const auto& state : given) {
      if (!state->is_empty_share()) continue;
      state->cell->assign(at::zeros({}, scalar_type_of(state->spec.dtype)).expand(state->spec.sizes));
    }
  }

  static void give(const std::string& checkpoint, const std::vector<StoredVariable>& stored) {
    LocalWorker& worker = local_worker();
    StagedValues staged;
    for (const RestoreStage stage : {RestoreStage::kCheck, RestoreStage::kApply}) {
      restore_variables(worker.store(), worker.devices(), checkpoint, stored, stage, &staged);
    }
  }

  DelayedRestore later_;
};

}  // namespace

std::shared_ptr<SavedVariables> variables_of_this_process() {
  static const auto here = std::make_shared<VariablesHere>();
  return here;
}

}  // namespace muster
