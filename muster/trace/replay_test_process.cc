#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "muster/graph/dump.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/tracer/trace.h"

extern char** environ;

namespace muster {
namespace {

constexpr int kSteps = 3;
constexpr uint64_t kSeed = 42;

// What goes to the other process and what comes back. Variables and arguments travel beside the program.
struct Job {
  std::string program;
  Tensors variables;  // as in Program::variables
  std::vector<Tensors> inputs;
};
struct Answer {
  std::vector<Tensors> outputs;
  std::vector<Tensors> variables;  // after each step
};

void write_lists(const std::string& path, const std::vector<Tensors>& lists) {
  Tensors all{torch::empty({static_cast<int64_t>(lists.size())}, torch::kLong)};
  for (size_t i = 0; i < lists.size(); ++i) {
    all[0][static_cast<int64_t>(i)] = static_cast<int64_t>(lists[i].size());
    for (const at::Tensor& tensor : lists[i]) all.push_back(tensor.detach().resolve_conj().resolve_neg());
  }
  torch::save(all, path);
}

std::vector<Tensors> read_lists(const std::string& path) {
  Tensors all;
  torch::load(all, path);
  std::vector<Tensors> lists;
  size_t next = 1;
  for (int64_t i = 0; i < all[0].numel(); ++i) {
    const size_t count = all[0][i].item<int64_t>();
    lists.emplace_back(all.begin() + next, all.begin() + next + count);
    next += count;
  }
  return lists;
}

Answer replay(const Job& job) {
  LocalWorker worker({.devices = {.gpus = false}, .exact = true});
  const Program program = parse_program(job.program);
  const ProgramHandle handle = worker.register_program(program);
  std::vector<std::shared_ptr<VariableCell>> cells;
  for (size_t i = 0; i < program.variables.size(); ++i) {
    const VariableRef& variable = program.variables[i];
    cells.push_back(worker.store().declare(variable.name, variable.spec, at::kCPU));
    cells.back()->assign(job.variables[i]);
  }
  Answer answer;
  for (size_t step = 0; step < job.inputs.size(); ++step) {
    answer.outputs.push_back(worker.run(handle, job.inputs[step], {.step = step}));
    for (at::Tensor& output : answer.outputs.back()) output = output.clone();
    Tensors& variables = answer.variables.emplace_back();
    for (const auto& cell : cells) variables.push_back(cell->read().clone());
  }
  return answer;
}

// The process that replays; started once and asked again and again.
class Replayer {
 public:
  Replayer() {
    std::array<int, 2> to_child{}, from_child{};
    if (pipe2(to_child.data(), O_CLOEXEC) != 0 || pipe2(from_child.data(), O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    std::string marked = std::string(kReplayerVariable) + "=1";
    environment.push_back(marked.data());
    environment.push_back(nullptr);
    std::string self = std::filesystem::read_symlink("/proc/self/exe");
    std::array<char*, 2> arguments{self.data(), nullptr};
    if (posix_spawn(&pid_, self.c_str(), &actions, nullptr, arguments.data(), environment.data()) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    to_ = fdopen(to_child[1], "w");
    from_ = fdopen(from_child[0], "r");
    char pattern[] = "/tmp/muster_replay_XXXXXX";
    folder_ = mkdtemp(pattern);
  }

  ~Replayer() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  // Throws what went wrong over there.
  Answer replay(const Job& job) {
    std::ofstream(folder_ + "/program", std::ios::binary) << job.program;
    std::vector<Tensors> given{job.variables};
    given.insert(given.end(), job.inputs.begin(), job.inputs.end());
    write_lists(folder_ + "/given", given);
    std::fputs((folder_ + "\n").c_str(), to_);
    std::fflush(to_);
    std::array<char, 4096> line{};
    if (std::fgets(line.data(), line.size(), from_) == nullptr) {
      alive_ = false;
      throw std::runtime_error("the process that replays has died");
    }
    if (std::string_view(line.data()) != "done\n") throw std::runtime_error(line.data());
    std::vector<Tensors> lists = read_lists(folder_ + "/answer");
    return {{lists.begin(), lists.begin() + kSteps}, {lists.begin() + kSteps, lists.end()}};
  }

  bool alive() const { return alive_; }

 private:
  pid_t pid_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string folder_;
  bool alive_ = true;
};

Answer replay_elsewhere(const Job& job) {
  static std::unique_ptr<Replayer> replayer;
  if (!replayer || !replayer->alive()) replayer = std::make_unique<Replayer>();
  return replayer->replay(job);
}

Tensors values_of(torch::nn::Module& module) {
  Tensors values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : module.buffers()) values.push_back(buffer.detach().clone());
  return values;
}

Tensors values_of(const ModuleVariables& variables) {
  Tensors values;
  for (const Variable& variable : variables.all()) values.push_back(variable.value().clone());
  return values;
}

// The values of a program's variables in the order in which the module has them; those that the program does not use
// stay as they were.
Tensors in_module_order(const Program& program, const ModuleVariables& variables, const Tensors& initial,
                        const Tensors& values) {
  Tensors ordered = initial;
  for (size_t i = 0; i < variables.all().size(); ++i) {
    for (size_t j = 0; j < program.variables.size(); ++j) {
      if (program.variables[j].name == variables.all()[i].name()) ordered[i] = values[j];
    }
  }
  return ordered;
}

Tensors in_program_order(const Program& program, const ModuleVariables& variables) {
  Tensors ordered;
  for (const VariableRef& reference : program.variables) {
    for (const Variable& variable : variables.all()) {
      if (variable.name() == reference.name) ordered.push_back(variable.value().clone());
    }
  }
  return ordered;
}

std::vector<Tensors> fresh_inputs(const std::function<Tensors()>& inputs) {
  std::vector<Tensors> all;
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(100 + step);
    all.push_back(inputs());
  }
  return all;
}

Subject made(const std::function<Subject()>& make) {
  torch::manual_seed(7);
  return make();
}

}  // namespace

void expect_replay_equals_eager(const std::function<Subject()>& make, const std::function<Tensors()>& inputs) {
  const std::vector<Tensors> given = fresh_inputs(inputs);
  Answer eager;
  Subject original = made(make);
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(step_seed(kSeed, step, 0));
    Tensors arguments;
    for (const at::Tensor& input : given[step]) arguments.push_back(input.clone());
    Tensors& outputs = eager.outputs.emplace_back();
    for (const at::Tensor& output : original.step(arguments)) outputs.push_back(output.detach().clone());
    eager.variables.push_back(values_of(*original.module));
  }

  Subject subject = made(make);
  const ModuleVariables variables(*subject.module);
  const Tensors initial = values_of(variables);
  auto function = muster::function(subject.step, {.name = "subject", .seed = kSeed});
  const Program program = function.program(given[0]);
  ASSERT_FALSE(program.instructions.empty());
  for (const bool portable : {false, true}) {
    const auto with = [&](size_t values_below) {
      const TraceOptions options{.seed = kSeed, .portable = portable, .values_below = values_below};
      return dump(trace(subject.step, given[0], options).program);
    };
    EXPECT_EQ(with(/*values_below=*/0), with(SIZE_MAX)) << "the program depends on whether its values are computed";
  }
  ASSERT_TRUE(same_bits(initial, values_of(variables))) << "tracing changed a variable";
  Answer elsewhere;
  ASSERT_NO_THROW(elsewhere = replay_elsewhere({serialize(program), in_program_order(program, variables), given}));

  for (int step = 0; step < kSteps; ++step) {
    Tensors arguments;
    for (const at::Tensor& input : given[step]) arguments.push_back(input.clone());
    const Tensors outputs = function.run({.step = static_cast<uint64_t>(step)}, arguments);
    EXPECT_TRUE(same_bits(eager.outputs[step], outputs)) << "outputs of step " << step;
    EXPECT_TRUE(same_bits(eager.variables[step], values_of(variables))) << "variables after step " << step;
    EXPECT_TRUE(same_bits(eager.outputs[step], elsewhere.outputs[step]))
        << "outputs of step " << step << " in the other process";
    EXPECT_TRUE(
        same_bits(eager.variables[step], in_module_order(program, variables, initial, elsewhere.variables[step])))
        << "variables after step " << step << " in the other process";
  }
}

Subject training(std::shared_ptr<torch::nn::Module> module, std::function<Tensors(const Tensors& inputs)> forward) {
  auto step = [parameters = module->parameters(), forward = std::move(forward)](const Tensors& inputs) {
    Tensors results = forward(inputs);
    const Tensors gradients = torch::autograd::grad({results[0]}, parameters);
    torch::NoGradGuard no_gradients;
    for (size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor parameter = parameters[i];
      parameter.sub_(0.1 * gradients[i]);
    }
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  };
  return {std::move(module), step};
}

Subject plain(std::function<Tensors(const Tensors& inputs)> function) {
  return {std::make_shared<torch::nn::Module>(), std::move(function)};
}

::testing::AssertionResult same_bits(const at::Tensor& expected, const at::Tensor& got) {
  if (!expected.defined() || !got.defined()) {
    if (expected.defined() == got.defined()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << (got.defined() ? "is defined" : "is undefined");
  }
  if (spec_of(expected) != spec_of(got)) {
    return ::testing::AssertionFailure() << "is " << spec_of(got).to_string() << ", expected "
                                         << spec_of(expected).to_string();
  }
  const Constant a = constant_of(expected), b = constant_of(got);
  if (*a.bytes == *b.bytes) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << spec_of(expected).to_string() << " is\n" << got << "\nexpected\n" << expected;
}

::testing::AssertionResult same_bits(const Tensors& expected, const Tensors& got) {
  if (expected.size() != got.size()) {
    return ::testing::AssertionFailure() << got.size() << " tensors, expected " << expected.size();
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (auto same = same_bits(expected[i], got[i]); !same) {
      return ::testing::AssertionFailure() << "tensor " << i << " " << same.message();
    }
  }
  return ::testing::AssertionSuccess();
}

int replay_for_parent() {
  at::set_num_threads(1);  // as its parent, with which it shares a machine
  for (std::string folder; std::getline(std::cin, folder);) {
    try {
      std::ifstream file(folder + "/program", std::ios::binary);
      Job job{std::string(std::istreambuf_iterator<char>(file), {}), {}, read_lists(folder + "/given")};
      job.variables = job.inputs.front();
      job.inputs.erase(job.inputs.begin());
      Answer answer = replay(job);
      answer.outputs.insert(answer.outputs.end(), answer.variables.begin(), answer.variables.end());
      write_lists(folder + "/answer", answer.outputs);
      std::cout << "done" << std::endl;
    } catch (const std::exception& error) {
      std::string words = error.what();
      std::replace(words.begin(), words.end(), '\n', ' ');
      std::cout << words << std::endl;
    }
  }
  return 0;
}

}  // namespace muster
