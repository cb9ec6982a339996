#include "muster/cluster/random_program.h"

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "muster/base/log.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using testing_support::Memory;
using testing_support::RandomInputs;
using testing_support::RandomProgram;
using Tensors = std::vector<at::Tensor>;

constexpr int kCalls = 2;
constexpr PassOptions kNoPasses{
    .dead = false, .views = false, .pool = false, .repeated = false, .fold = false, .fuse = false};

// What can be seen after a call, as values.
struct Seen {
  Tensors outputs, variables, arguments;
};

Tensors clones(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.detach().cpu().clone(at::MemoryFormat::Contiguous));
  return all;
}

// Bit for bit, but a NaN is a NaN.
std::string difference(const char* what, const Tensors& expected, const Tensors& got) {
  if (expected.size() != got.size()) return str_cat(what, ": ", got.size(), " instead of ", expected.size(), "\n");
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor &a = expected[i], &b = got[i];
    const bool same = a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
                      (a.is_floating_point() ? torch::where(a == b, torch::signbit(a) == torch::signbit(b), a != a)
                                                   .logical_and(torch::isnan(a) == torch::isnan(b))
                                                   .all()
                                                   .item<bool>()
                                             : torch::equal(a, b));
    if (same) continue;
    std::ostringstream text;
    text << what << " " << i << ":\n" << b << "\ninstead of\n" << a << "\n";
    return text.str();
  }
  return "";
}

// What the caller gets is the caller's: whatever is its own alone it may write to.
void write_to(const Tensors& outputs, const std::vector<bool>& own) {
  for (size_t i = 0; i < outputs.size() && i < own.size(); ++i) {
    if (own[i] && outputs[i].is_non_overlapping_and_dense()) outputs[i].detach().fill_(77);
  }
}

// One way to run a program: makes what it needs when it is constructed, and is called kCalls times.
class Way {
 public:
  virtual ~Way() = default;
  virtual Seen call(const Tensors& arguments, const std::vector<bool>& own) = 0;
};

class Eager : public Way {
 public:
  Eager(const RandomProgram& program, const Tensors& variables) : program_(program), variables_(clones(variables)) {
    for (at::Tensor& variable : variables_) variable.requires_grad_(variable.is_floating_point());
  }
  Seen call(const Tensors& arguments, const std::vector<bool>&) override {
    const Memory memory{
        .read = [&](size_t i) { return variables_[i]; },
        .write =
            [&](size_t i, int how, const at::Tensor& value) {
              if (how == 0) variables_[i].copy_(value);
              if (how == 1) variables_[i].add_(value);
              if (how == 2) variables_[i].sub_(value);
            },
        .gradient = [&](const at::Tensor& loss,
                        size_t i) { return torch::autograd::grad({loss}, {variables_[i]}, {}, true, false, true)[0]; }};
    const Tensors outputs = program_.run(arguments, variables_.size(), memory, {""});
    own_.clear();
    for (const at::Tensor& output : outputs) {
      auto shared = [&](const at::Tensor& other) { return output.is_alias_of(other); };
      own_.push_back(std::none_of(arguments.begin(), arguments.end(), shared) &&
                     std::none_of(variables_.begin(), variables_.end(), shared));
    }
    return {clones(outputs), clones(variables_), clones(arguments)};
  }
  const std::vector<bool>& own() const { return own_; }  // outputs of the last call that share memory with nothing else

 private:
  const RandomProgram& program_;
  Tensors variables_;
  std::vector<bool> own_;
};

// The function and its variables on the devices given.
class Traced {
 public:
  Traced(const RandomProgram& program, const Tensors& variables, std::vector<std::string> devices,
         const std::vector<std::string>& homes)
      : program_(program), devices_(std::move(devices)) {
    for (size_t i = 0; i < variables.size(); ++i) {
      variables_.emplace_back(variables[i], VariableOptions{.name = "random", .device = homes[i % homes.size()]});
    }
  }
  auto function() {
    return muster::function(
        [this](Tensors arguments) { return program_.run(arguments, variables_.size(), memory(), devices_); });
  }
  std::vector<Variable>& variables() { return variables_; }

 private:
  const Memory& memory() {
    memory_ = {.read = [this](size_t i) { return variables_[i].value(); },
               .write =
                   [this](size_t i, int how, const at::Tensor& value) {
                     if (how == 0) variables_[i].assign(value);
                     if (how == 1) variables_[i].assign_add(value);
                     if (how == 2) variables_[i].assign_sub(value);
                   },
               .gradient = [this](const at::Tensor& loss, size_t i) { return gradient(loss, variables_[i]); }};
    return memory_;
  }

  const RandomProgram& program_;
  const std::vector<std::string> devices_;
  std::vector<Variable> variables_;
  Memory memory_;
};

const std::vector<std::string>& local_devices() {
  static const std::vector<std::string> devices = {"", "/device:CPU:0", "/device:CPU:1"};
  return devices;
}

// Called as users call it.
class Direct : public Way {
 public:
  Direct(const RandomProgram& program, const Tensors& variables)
      : traced_(program, variables, local_devices(), {""}), function_(traced_.function()) {}
  Seen call(const Tensors& arguments, const std::vector<bool>& own) override {
    const Tensors outputs = function_(arguments);
    Seen seen{clones(outputs), {}, clones(arguments)};
    for (const Variable& variable : traced_.variables()) seen.variables.push_back(variable.value().cpu().clone());
    write_to(outputs, own);
    return seen;
  }

 private:
  Traced traced_;
  decltype(std::declval<Traced>().function()) function_;
};

// By a worker of its own, as it is or from its bytes.
class OnAWorker : public Way {
 public:
  OnAWorker(const RandomProgram& program, const Tensors& variables, LocalWorker& worker, bool as_bytes)
      : traced_(program, variables, local_devices(), {""}),
        function_(traced_.function()),
        initial_(variables),
        worker_(worker),
        as_bytes_(as_bytes) {}
  ~OnAWorker() override {
    for (const auto& [entry, handle] : handles_) worker_.deregister_program(handle);
    for (const auto& cell : cells_) worker_.store().erase(cell->name());
  }
  Seen call(const Tensors& arguments, const std::vector<bool>& own) override {
    Tensors tensors;
    const auto entry = function_.bind(tensors, arguments);
    ProgramHandle handle;
    for (const auto& [known, its] : handles_) {
      if (known == entry) handle = its;
    }
    if (handle.id == 0) {
      handle =
          worker_.register_program(as_bytes_ ? parse_program(serialize(entry->traced.program)) : entry->traced.program);
      handles_.emplace_back(entry, handle);
    }
    while (cells_.size() < traced_.variables().size()) {
      const Variable::State& state = *traced_.variables()[cells_.size()].state();
      auto cell = worker_.store().declare(state.options.name, state.spec, at::kCPU);
      cell->assign(initial_[cells_.size()]);
      cells_.push_back(std::move(cell));
    }
    if (as_bytes_) begin_at_their_memory(tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (entry->traced.compact[i] && tensors[i].storage_offset() != 0) tensors[i] = from_its_start(tensors[i]);
    }
    const Tensors outputs = worker_.run(handle, tensors);
    Seen seen{clones(outputs), {}, as_bytes_ ? Tensors{} : clones(arguments)};
    for (const auto& cell : cells_) seen.variables.push_back(cell->read().clone());
    write_to(outputs, own);
    return seen;
  }

 private:
  static at::Tensor from_its_start(const at::Tensor& tensor) {
    return at::from_blob(
        tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, tensor.options(),
        tensor.device());
  }

  Traced traced_;
  decltype(std::declval<Traced>().function()) function_;
  const Tensors initial_;
  LocalWorker& worker_;
  const bool as_bytes_;
  std::vector<std::shared_ptr<VariableCell>> cells_;
  std::vector<std::pair<std::shared_ptr<TracedFunction::Entry>, ProgramHandle>> handles_;
};

// Over the tasks of a cluster.
class Split : public Way {
 public:
  Split(const RandomProgram& program, const Tensors& variables, InProcessCluster& cluster)
      : traced_(program, variables, {"", "/job:worker/task:1", "/job:ps/task:0"},
                {"/job:ps/task:0", "/job:worker/task:1", "/job:worker/task:0"}),
        function_(traced_.function()),
        session_(cluster.session({"worker", 0}, {.isolated = true})) {
    session_->run(initializer(traced_.variables()));
  }
  Seen call(const Tensors& arguments, const std::vector<bool>& own) override {
    const Tensors outputs = session_->run(function_, arguments);
    Seen seen{clones(outputs), {}, {}};
    for (const Variable& variable : traced_.variables()) seen.variables.push_back(session_->value(variable).clone());
    write_to(outputs, own);
    return seen;
  }

 private:
  Traced traced_;
  decltype(std::declval<Traced>().function()) function_;
  std::unique_ptr<Session> session_;
};

// The tasks that all comparisons use.
struct Tasks {
  LocalWorker plain{{.devices = {.cpus = 2, .gpus = false}, .passes = kNoPasses, .exact = true}};
  LocalWorker elsewhere{{.devices = {.cpus = 2, .gpus = false}, .exact = true}};
  InProcessCluster cluster{{.workers = 2, .ps = 1, .transport = Transport::kLocal, .worker = {.exact = true}}};
};

// Refused in plain words, which is not a wrong result.
bool is_a_known_limit(std::string_view words) {
  for (std::string_view limit :
       {"control flow over several tasks can only write variables",
        "that it was given and that is written to, but its result must be on", "but one instruction runs on one device",
        "which begins as a tensor that is not contiguous",
        // An argument in another order of memory arrives elsewhere in the usual one, where some views do not exist.
        "view size is not compatible with input tensor's size and stride"}) {
    if (words.find(limit) != std::string_view::npos) return true;
  }
  return false;
}

// What another way of running gives, where that is not what libtorch gives; "" if all are the same.
std::string compare(const RandomProgram& program, uint32_t seed, Tasks& tasks) {
  const RandomInputs inputs{seed};
  const Tensors variables = inputs.variables();
  std::vector<Seen> expected;
  std::vector<std::vector<bool>> own;
  Eager eager(program, variables);
  for (int call = 0; call < kCalls; ++call) {
    expected.push_back(eager.call(inputs.arguments(call), {}));
    own.push_back(eager.own());
  }
  const std::vector<std::pair<const char*, std::function<std::unique_ptr<Way>()>>> ways = {
      {"called directly", [&] { return std::make_unique<Direct>(program, variables); }},
      {"without passes", [&] { return std::make_unique<OnAWorker>(program, variables, tasks.plain, false); }},
      {"as bytes", [&] { return std::make_unique<OnAWorker>(program, variables, tasks.elsewhere, true); }},
      {"over tasks", [&] { return std::make_unique<Split>(program, variables, tasks.cluster); }},
  };
  for (const auto& [name, make] : ways) {
    try {
      const std::unique_ptr<Way> way = make();
      for (int call = 0; call < kCalls; ++call) {
        const Seen seen = way->call(inputs.arguments(call), own[call]);
        std::string words = difference("output", expected[call].outputs, seen.outputs);
        words += difference("variable", expected[call].variables, seen.variables);
        if (!seen.arguments.empty()) words += difference("argument", expected[call].arguments, seen.arguments);
        if (!words.empty()) return str_cat(name, ", call ", call, ": ", words);
      }
    } catch (const std::exception& error) {
      if (is_a_known_limit(error.what())) continue;
      return str_cat(name, ": ", error.what());
    }
  }
  return "";
}

// Takes away, as long as there is a difference, what can be taken away.
RandomProgram reduced(RandomProgram program, const std::function<bool(const RandomProgram&)>& differs) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t i = program.steps.size(); i-- > 0;) {
      RandomProgram without = program;
      without.steps.erase(without.steps.begin() + static_cast<std::ptrdiff_t>(i));
      if (differs(without)) {
        program = std::move(without);
        smaller = true;
        continue;
      }
      for (size_t b = 0; b < program.steps[i].bodies.size(); ++b) {
        const size_t before = program.steps[i].bodies[b].steps.size();
        program.steps[i].bodies[b] = reduced(program.steps[i].bodies[b], [&](const RandomProgram& body) {
          RandomProgram other = program;
          other.steps[i].bodies[b] = body;
          return differs(other);
        });
        smaller = smaller || program.steps[i].bodies[b].steps.size() < before;
      }
    }
  }
  return program;
}

// Also the reduced programs of what was found once: RandomProgram{{steps}} with the seed of its inputs.
void expect_same(const RandomProgram& program, uint32_t seed, Tasks& tasks) {
  LogCapture quiet;
  std::string words = compare(program, seed, tasks);
  if (words.empty()) return;
  const RandomProgram small =
      reduced(program, [&](const RandomProgram& each) { return !compare(each, seed, tasks).empty(); });
  ADD_FAILURE() << "seed " << seed << ", " << compare(small, seed, tasks) << "\nprogram:\n" << small.to_string();
}

RandomProgram drawn(uint32_t seed) {
  std::mt19937 random(seed);
  return RandomProgram::draw(random, 4 + random() % 14);
}

TEST(RandomPrograms, GiveWhatLibtorchGivesHoweverTheyRun) {
  Tasks tasks;

  for (uint32_t seed = 1; seed <= 400 && !HasFailure(); ++seed) expect_same(drawn(seed), seed, tasks);
}

TEST(RandomPrograms, ThatWereFoundOnceStayRight) {
  using Body = RandomProgram;
  Tasks tasks;
  const std::vector<std::pair<uint32_t, RandomProgram>> found = {
      // A state in another order of memory, whose memory the loop writes.
      {38,
       {{{7, {77, 699, 556, 460}, 0, {}},
         {6, {305, 373, 221, 252}, 0, {}},
         {9, {999, 58, 349, 789}, 0, {}},
         {19, {921, 656, 882, 739}, 0, {Body{}, Body{}}},
         {19, {188, 129, 666, 423}, 0, {Body{{{11, {925, 336, 989, 170}, 0, {}}}}, Body{}}}}}},
      // Another task returned its constant itself.
      {54, {{{0, {707, 821, 828, 174}, 1, {}}}}},
      // A variable that control flow over several tasks writes, and that is read afterwards.
      {77,
       {{{3, {145, 59, 790, 681}, 0, {}},
         {18, {844, 861, 296, 428}, 0, {Body{}, Body{{{15, {73, 220, 512, 908}, 2, {}}}}}},
         {14, {32, 912, 223, 95}, 0, {}}}}},
      {77,
       {{{15, {108, 36, 387, 277}, 2, {}},
         {3, {145, 59, 790, 681}, 0, {}},
         {18, {844, 861, 296, 428}, 0, {Body{}, Body{{{15, {73, 220, 512, 908}, 2, {}}}}}},
         {14, {32, 912, 223, 95}, 0, {}}}}},
      // Control flow that was given one tensor twice, and ran on another device.
      {234,
       {{{19,
          {410, 110, 520, 746},
          2,
          {Body{{{7, {573, 55, 548, 576}, 0, {}}, {12, {978, 719, 277, 103}, 0, {}}}}, Body{}}}}}},
      // An argument in another order of memory that a branch returns.
      {32, {{{18, {953, 940, 867, 489}, 0, {Body{}, Body{}}}}}},
      // Equal values of one part, of which a later part of the task writes one.
      {1365, {{{19, {243, 73, 268, 816}, 1, {Body{}, Body{}}}, {11, {92, 98, 913, 361}, 0, {}}}}},
      // A variable that a branch at its task returns, and that a later part of the task writes by that name.
      {4616,
       {{{0, {317, 753, 167, 391}, 0, {}},
         {9, {99, 428, 918, 621}, 0, {}},
         {14, {111, 588, 973, 30}, 0, {}},
         {6, {412, 287, 165, 930}, 0, {}},
         {0, {524, 755, 239, 617}, 2, {}},
         {17, {940, 673, 296, 132}, 1, {}},
         {14, {606, 689, 396, 700}, 0, {}},
         {18, {22, 80, 160, 611}, 2, {Body{}, Body{}}},
         {12, {869, 394, 320, 47}, 0, {}}}}},
      // A part that control flow waits for, and that waited for what comes after it.
      {6479,
       {{{2, {607, 34, 835, 138}, 0, {}},
         {1, {472, 680, 374, 104}, 0, {}},
         {8, {708, 732, 91, 341}, 0, {}},
         {17, {583, 6, 789, 902}, 2, {}},
         {18, {22, 331, 331, 189}, 1, {Body{{{15, {457, 597, 805, 736}, 2, {}}}}, Body{}}},
         {2, {870, 420, 85, 98}, 1, {}}}}},
  };

  for (const auto& [seed, program] : found) expect_same(program, seed, tasks);
}

// `make fuzz` sets the time.
TEST(RandomPrograms, GiveWhatLibtorchGivesForAsLongAsWanted) {
  const char* seconds = std::getenv("MUSTER_FUZZ_SECONDS");
  if (seconds == nullptr) GTEST_SKIP() << "no time is given";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(seconds));
  const char* first = std::getenv("MUSTER_FUZZ_SEED");
  auto seed = first == nullptr ? std::random_device()() : static_cast<uint32_t>(std::strtoul(first, nullptr, 10));
  Tasks tasks;
  int64_t programs = 0;

  for (; std::chrono::steady_clock::now() < end && !HasFailure(); ++programs)
    expect_same(drawn(seed), seed, tasks), ++seed;

  std::cerr << programs << " random programs; the last seed was " << seed - 1 << "\n";
  for (const auto& [name, count] : testing_support::step_counts()) std::cerr << "  " << count << " " << name << "\n";
}

}  // namespace
}  // namespace muster
