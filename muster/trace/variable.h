// Tensors that outlive a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/variables/variable_store.h"
#include "muster/trace/across_workers.h"
#include "muster/trace/initial_value.h"

namespace muster {

class VariableHome;

// A number that says which parts of a module are in training mode: another one when that changes.
using ModuleModes = std::function<uint64_t()>;

// What becomes of a variable that several replicas of a step write to: see ParameterServerStrategy::run.
enum class Aggregation {
  kNone,              // an error, unless there is one replica
  kSum,               // of what they write; an error for bool
  kMean,              // likewise; that of whole numbers is rounded towards zero
  kOnlyFirstReplica,  // what the first one writes
};

// When what replicas write to their copies of a variable becomes one value. Where all of them have the same memory
// (central storage, parameter servers) it does with each write.
enum class Synchronization {
  kOnWrite,  // with each write: the copies are alike, bit for bit
  // When it is read outside of replicas, by the aggregation: each replica reads and writes a copy of its own, which
  // costs nothing. With kSum, what it is made with or assigned outside is what the first replica has, and the others
  // have 0 (TensorFlow divides). Of several processes all read it together, unless it is kOnlyFirstReplica, which is
  // that of the process. Copies are read one after the other: a step that runs meanwhile may count in part. Its rows
  // and its memory are those of a replica, and taken there alone. It is not trained.
  kOnRead,
};

struct VariableOptions {
  std::string name = "variable";  // made unique within the process: "w", "w_1", …
  bool trainable = true;
  std::string device{};  // partial or full; else the DeviceScope, else the default device
  Aggregation aggregation = Aggregation::kNone;
  Synchronization synchronization = Synchronization::kOnWrite;
  WireForm wire{};  // of what functions read and write when it lives on another machine; value() and assign() are exact
};
// The form of a variable that says nothing itself.
using WireChoice = std::function<WireForm(const std::string& name, const TensorSpec&)>;

// A handle, cheap to copy, like at::Tensor.
// Inside a traced function it is a tensor of the step: reading it gives that tensor, assigning writes to it in place,
// and gradient() differentiates by it. Outside, `value()` is the value at this moment and assigning takes effect at
// once. A local variable lives as long as its handles and the functions that use it. One whose device is of another job
// lives there, gets its value by its initializer, and is read and written by functions that a session runs. One that is
// made in the scope of a strategy lives where the strategy says, perhaps in several parts.
// Thread-safe: a run that writes a variable has it to itself, and what a reader holds never changes. That may be the
// memory of a local variable itself: who wants to write to what value() or a function gave clones it first.
class Variable {
 public:
  explicit Variable(const InitialValue& initial, VariableOptions options = {});

  const std::string& name() const;
  const std::string& device() const;
  bool trainable() const;
  at::IntArrayRef sizes() const;
  at::ScalarType dtype() const;

  at::Tensor value() const;
  operator at::Tensor() const { return value(); }  // NOLINT: w goes where a tensor goes

  // Each returns the handle. Shapes broadcast to the variable's, as in libtorch.
  Variable& assign(const at::Tensor& value);
  Variable& assign_add(const at::Tensor& delta);
  Variable& assign_sub(const at::Tensor& delta);

  // What ops that write in place write to, inside a traced function. REQUIRES: it is not kept in parts.
  at::Tensor memory() const;

  // The parts, each with some of the rows, of a variable that is kept in several; else none.
  const std::vector<Variable>& shards() const;
  // Of a mirrored variable: one on each device, with the same value; else none.
  const std::vector<Variable>& copies() const;
  // The copy that is read here: that of the replica, else the first. The variable itself if there are none.
  Variable copy_here() const;

  struct State;
  explicit Variable(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// What the handles of a variable share.
struct Variable::State : std::enable_shared_from_this<State> {
  State(const InitialValue& initial, VariableOptions options, at::Tensor adopted = {});
  // Lives with another task, which `home` knows. REQUIRES: options.device is a full name.
  State(TensorSpec spec, VariableOptions options, std::shared_ptr<VariableHome> home);
  // Its rows are those of the parts, in their order.
  State(std::vector<Variable> shards, VariableOptions options);
  // What is written to it is written to each of the copies, one per replica, which are alike.
  static std::shared_ptr<State> mirrored(std::vector<Variable> copies, VariableOptions options);
  ~State();

  VariableOptions options;
  TensorSpec spec;
  std::shared_ptr<VariableCell> cell;  // null: it lives with another task
  at::Tensor initial;                  // of a variable of another task: what its initializer gives it
  std::shared_ptr<VariableHome> home;  // of a variable of another task that a strategy has made
  std::vector<Variable> shards;
  std::vector<Variable> copies;
  std::weak_ptr<State> copy_of;  // of one of several copies: the whole
  AcrossWorkers across;          // who has copies of it, which change together with it in strategy.run()
  bool on_demand = false;        // its rows get their initial values when they are first written
  struct PartOf {
    std::string name;
    std::vector<int64_t> sizes;
    int64_t first_row;
    bool alike = false;  // as in make_beside()
  };
  std::optional<PartOf> part_of;  // of one of several shards: the whole
  at::Tensor adopted;             // the module's tensor that stands for the variable while tracing, if it has one
  c10::Storage adopted_memory;    // which it had when it was adopted
  std::atomic<uint32_t> adopted_version{0};  // how often that had been written to when its value was the variable's
  std::shared_ptr<const ModuleModes> modes;  // of that module
  at::Tensor shown;                          // as in shown_parameter()

  bool in_step() const { return !across.alone(); }
  bool own_by_replica() const { return options.synchronization == Synchronization::kOnRead; }
  // Whether reading it outside of replicas puts together what several of them have.
  bool is_put_together() const;
  // Of one of the copies of such a variable: whether what is assigned to the whole is 0 there, since another has it.
  bool is_empty_share() const;

  // What stands for the variable while a function is traced.
  at::Tensor tracing_value() const;
  // Throws Error{kFailedPrecondition} if the variable lives with another task.
  VariableCell& local() const;

  // A variable for which `tensor` stands while tracing. Error{kAlreadyExists} if it stands for another one.
  static std::shared_ptr<State> adopt(at::Tensor tensor, VariableOptions options);
  // The variable for which the tensor, or what it is a view of, stands; null if there is none. Throws
  // Error{kFailedPrecondition} if the module has got another tensor in its place since.
  static std::shared_ptr<State> find(const at::Tensor& tensor);
  static bool is_adopted(const c10::StorageImpl* storage);
  // The variable that a module shows by this tensor; null if it shows none.
  static std::shared_ptr<State> find_shown(const at::Tensor& tensor);
  // Whether somebody has written to the module's tensor, which is not the variable's value.
  bool adopted_was_changed() const;
  void note_adopted_version();
  static std::vector<std::shared_ptr<State>> all_adopted();
  // Those of this process that live here, copies one by one.
  static std::vector<std::shared_ptr<State>> all_here();
};

// d loss / d variable, of the variable's shape, for use inside a traced function: rows that were looked up count like
// any other use, and where the loss does not depend on the variable there are zeros (optimizers leave such a variable
// alone: see gradients_by_rows). Throws Error{kInvalidArgument} for a loss that depends on nothing at all and for a
// variable that is not trainable.
at::Tensor gradient(const at::Tensor& loss, const Variable& variable);
std::vector<at::Tensor> gradient(const at::Tensor& loss, const std::vector<Variable>& variables);
template <class... More>
std::vector<at::Tensor> gradient(const at::Tensor& loss, const Variable& first, const Variable& second,
                                 const More&... more) {
  return gradient(loss, std::vector<Variable>{first, second, more...});
}

}  // namespace muster
