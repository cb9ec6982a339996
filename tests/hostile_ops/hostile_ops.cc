// Calls every op that a program may run with operands that an honest program would not give it, and those that a worker
// has other kernels for through a worker, too. Each op is called in a process of its own, so that a crash has a name.
//   hostile_ops [--calls N] [--seed N] [--op PART_OF_A_NAME] [--unguarded]
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>

#include "fence_allocator.h"
#include "honest_calls.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/ops/op_guards.h"
#include "operands.h"
#include "worker_calls.h"

namespace muster::testing_support {
namespace {

constexpr unsigned kSeconds = 20, kSecondsInWorker = 120;  // for all calls of one op

struct Options {
  int64_t calls = 60;
  uint64_t seed = 1;
  std::string op{};
  bool unguarded = false;
};

// What the child was about to do, for the parent to read after its death.
struct Board {
  int64_t calls, accepted, refused_by_guard;
  char call[4096];
};

std::vector<c10::OperatorHandle> allowed_ops(const std::string& part) {
  const OpCatalog catalog;
  std::vector<c10::OperatorHandle> ops;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string text = qualified_name(name);
    if (!catalog.allowed(text) || text.find(part) == std::string::npos) continue;
    if (auto op = c10::Dispatcher::singleton().findSchema(name)) ops.push_back(*op);
  }
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) {
    return qualified_name(a.operator_name()) < qualified_name(b.operator_name());
  });
  return ops;
}

void call_often(const c10::OperatorHandle& op, const Options& options, const Calls& honest, FenceAllocator& allocator,
                Board& board) {
  const std::string name = qualified_name(op.operator_name());
  const auto guard = options.unguarded ? nullptr : guard_of(op);
  PlainTensors plain;
  const auto seen = honest.find(name);
  Operands operands(op.schema(), options.seed, seen == honest.end() ? Calls::mapped_type{} : seen->second);
  for (int64_t i = 0; i < options.calls; ++i) {
    allocator.fence_in_front = i % 3 == 2;
    board.calls = i + 1;
    try {
      std::vector<c10::IValue> stack = operands.make();
      const std::vector<c10::IValue> given = stack;
      std::snprintf(board.call, sizeof board.call, "%s", describe_call(name, stack).c_str());
      if (guard) {
        try {
          guard->check_once(stack);
          guard->check(stack);
        } catch (const Error&) {
          ++board.refused_by_guard;
          throw;
        }
      }
      op.callBoxed(stack);
      ++board.accepted;
      operands.accepted(given);
    } catch (const std::exception&) {
      // Refused, as it should be.
    }
  }
}

void call_often_in_worker(const c10::OperatorHandle& op, const Options& options, const Calls& honest,
                          FenceAllocator& allocator, Board& board) {
  const std::string name = qualified_name(op.operator_name());
  PlainTensors plain;
  auto before = [&](const std::string& kernel, const std::vector<c10::IValue>& stack) {
    allocator.fence_in_front = ++board.calls % 3 == 2;
    std::snprintf(board.call, sizeof board.call, "in a worker, kernel \"%s\", %s", kernel.c_str(),
                  describe_call(name, stack).c_str());
  };
  call_in_worker(op, honest.at(name), options.seed, options.calls, before, [&] { ++board.accepted; });
}

// Dies with the op that does not survive its operands. Returns whether it did not.
bool survives(const c10::OperatorHandle& op, unsigned seconds, const std::function<void()>& call_it, Board& board) {
  std::memset(&board, 0, sizeof board);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    const rlimit memory{size_t{8} << 30, size_t{8} << 30};
    const bool sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;  // has terabytes of addresses
    if (!sanitized) setrlimit(RLIMIT_DATA, &memory);
    // LAPACK and libtorch say what they think of it.
    if (!std::freopen("/dev/null", "w", stdout) || !std::freopen("/dev/null", "w", stderr)) _exit(3);
    alarm(seconds);
    call_it();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  const std::string name = qualified_name(op.operator_name());
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    std::cout << name << " ran longer than " << seconds << " s at call " << board.calls << ": " << board.call
              << std::endl;
  } else {
    std::cout << name << " ended by " << (WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit") << " at call "
              << board.calls << ": " << board.call << std::endl;
  }
  return false;
}

// As the executor does: a tensor that an op needs is there.
void check_operands(const c10::OperatorHandle& op, const OpGuard* guard, const std::vector<c10::IValue>& stack) {
  for (size_t i = 0; i < stack.size(); ++i) {
    const bool needed = op.schema().arguments()[i].type()->kind() == c10::TypeKind::TensorType &&
                        (guard == nullptr || !guard->may_be_missing(i));
    if (needed && !stack[i].toTensor().defined()) throw invalid_argument("argument ", i, " is not defined");
  }
  if (guard == nullptr) return;
  guard->check_once(stack);
  guard->check(stack);
}

// A boundary that refuses what an honest program does would be worse than none. Returns how often it would.
int64_t refuse_honest(const Calls& honest) {
  const OpCatalog catalog;
  int64_t refused = 0;
  for (const auto& [name, stacks] : honest) {
    const size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
    const auto guard = guard_of(op);
    // What libtorch takes apart is not in a program.
    const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (!composite && !catalog.allowed(name)) {
      ++refused;
      std::cout << "not allowed, but an honest layer calls it: " << name << std::endl;
    }
    for (const auto& stack : stacks) {
      try {
        check_operands(op, guard.get(), stack);
      } catch (const Error& error) {
        ++refused;
        std::cout << "the guard of an honest call says: " << error.status().message() << ": "
                  << describe_call(name, stack) << std::endl;
      }
    }
  }
  return refused;
}

int run(const Options& options) {
  at::set_num_threads(1);  // a child has only the thread that made it
  static FenceAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
  const Calls honest = honest_calls();
  auto* board =
      static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int64_t wronged = refuse_honest(honest);
  int64_t ops = 0, died = 0, calls = 0, accepted = 0, refused = 0, never = 0;
  for (const c10::OperatorHandle& op : allowed_ops(options.op)) {
    ++ops;
    if (!survives(op, kSeconds, [&] { call_often(op, options, honest, allocator, *board); }, *board)) ++died;
    calls += board->calls;
    accepted += board->accepted;
    refused += board->refused_by_guard;
    if (board->accepted == 0) {
      ++never;
      if (std::getenv("HOSTILE_NEVER"))
        std::cout << "never accepted: " << qualified_name(op.operator_name()) << std::endl;
    }
  }
  int64_t chosen = 0, chosen_calls = 0, chosen_accepted = 0;
  for (const c10::OperatorHandle& op : allowed_ops(options.op)) {
    const std::string name = qualified_name(op.operator_name());
    if (!has_kernels_to_choose(name) || !honest.contains(name)) continue;
    ++chosen;
    auto call = [&] { call_often_in_worker(op, options, honest, allocator, *board); };
    if (!survives(op, kSecondsInWorker, call, *board)) ++died;
    chosen_calls += board->calls;
    chosen_accepted += board->accepted;
  }
  std::cout << chosen << " ops in workers, " << chosen_calls << " calls, " << chosen_accepted << " accepted"
            << std::endl;
  std::cout << honest.size() << " honest, " << ops << " ops, " << calls << " calls, " << accepted << " accepted, "
            << refused << " refused by a guard, " << never << " ops accepted none, " << died << " ops did not survive"
            << std::endl;
  return died == 0 && wronged == 0 && ops > 0 && !honest.empty() ? 0 : 1;
}

}  // namespace
}  // namespace muster::testing_support

int main(int argc, char** argv) {
  muster::testing_support::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--unguarded") {
      options.unguarded = true;
    } else if (i + 1 < argc && flag == "--calls") {
      options.calls = std::stoll(argv[++i]);
    } else if (i + 1 < argc && flag == "--seed") {
      options.seed = std::stoull(argv[++i]);
    } else if (i + 1 < argc && flag == "--op") {
      options.op = argv[++i];
    } else {
      std::cerr << "hostile_ops [--calls N] [--seed N] [--op PART_OF_A_NAME] [--unguarded]\n";
      return 2;
    }
  }
  return muster::testing_support::run(options);
}
