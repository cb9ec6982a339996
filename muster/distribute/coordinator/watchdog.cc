#include "muster/distribute/coordinator/watchdog.h"

#include <absl/base/attributes.h>
#include <absl/strings/numbers.h>
#include <absl/time/time.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr double kMostSeconds = 1e9;  // what surely fits into any clock

// One thread's stack, which the thread itself writes down when it gets the signal.
struct Answer {
  enum State { kNotAsked, kAsked, kThere };

  pid_t thread = 0;
  void* frames[64] = {};
  int count = 0;
  std::atomic<State> state = kNotAsked;  // also orders the accesses to the rest
};

// Async-signal-safe: backtrace() allocates only in its first call, which is made before the signal is sent.
void write_down_stack(int, siginfo_t* info, void*) {
  if (info->si_code != SI_QUEUE || info->si_pid != getpid()) return;
  auto* answer = static_cast<Answer*>(info->si_value.sival_ptr);
  if (answer->state.load() != Answer::kAsked) return;
  const int saved_errno = errno;
  answer->count = backtrace(answer->frames, std::size(answer->frames));
  answer->state.store(Answer::kThere);
  errno = saved_errno;
}

// Whether the thread blocks the signal, and so would not answer before it unblocks it.
bool blocks(pid_t thread, int signal) {
  std::ifstream status(str_cat("/proc/self/task/", thread, "/status"));
  for (std::string word; status >> word;) {
    uint64_t mask = 0;
    if (word == "SigBlk:" && status >> std::hex >> mask) return mask >> (signal - 1) & 1;
  }
  return false;
}

// glibc has no function for this: a signal to one thread that carries a value.
void ask(Answer& answer, int signal) {
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = &answer;
  answer.state = Answer::kAsked;
  if (syscall(SYS_rt_tgsigqueueinfo, getpid(), answer.thread, signal, &info) != 0) answer.state = Answer::kNotAsked;
}

// All at once, so that the stacks are of about the same moment.
std::vector<std::unique_ptr<Answer>> ask_all_threads(int signal) {
  std::vector<std::unique_ptr<Answer>> answers;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/task", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    auto answer = std::make_unique<Answer>();
    if (!absl::SimpleAtoi(entry->path().filename().string(), &answer->thread)) continue;
    if (!blocks(answer->thread, signal)) ask(*answer, signal);
    answers.push_back(std::move(answer));
  }
  return answers;
}

void await(const std::vector<std::unique_ptr<Answer>>& answers, std::chrono::milliseconds most) {
  const auto deadline = std::chrono::steady_clock::now() + most;
  for (const auto& answer : answers) {
    while (answer->state == Answer::kAsked && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void write_stack(int fd, const Answer& answer) {
  const bool there = answer.state == Answer::kThere;
  std::string name;
  std::getline(std::ifstream(str_cat("/proc/self/task/", answer.thread, "/comm")), name);
  dprintf(fd, "thread %d (%s):%s\n", answer.thread, name.c_str(), there ? "" : " does not answer");
  if (there) backtrace_symbols_fd(answer.frames, answer.count, fd);
}

void bark(std::chrono::milliseconds timeout) {
  MUSTER_LOG(warning) << "no function has ended for " << absl::FormatDuration(absl::FromChrono(timeout))
                      << "; the stacks of all threads follow";
  write_all_stacks(STDERR_FILENO);
}

}  // namespace

std::optional<std::chrono::milliseconds> watchdog_timeout_from_environment() {
  for (const char* name : {"MUSTER_COORDINATOR_WATCHDOG_TIMEOUT", "TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    double seconds = 0;
    if (!absl::SimpleAtod(value, &seconds) || !(std::abs(seconds) <= kMostSeconds)) {
      throw invalid_argument("environment variable ", name, " is \"", value, "\"; expected a number of seconds");
    }
    if (seconds <= 0) return std::nullopt;
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  }
  return std::nullopt;
}

void write_all_stacks(int fd) {
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  // Answers that did not come in time. A thread may still write them, so they stay.
  static auto& late = *new std::vector<std::unique_ptr<Answer>>;
  const absl::MutexLock lock(&mu);

  const int signal = SIGRTMAX - 2;
  void* first_call[1];
  backtrace(first_call, 1);
  struct sigaction ours {};
  ours.sa_sigaction = write_down_stack;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&ours.sa_mask);
  struct sigaction before {};
  if (sigaction(signal, &ours, &before) != 0) {
    dprintf(fd, "no stacks: sigaction: %s\n", strerror(errno));
    return;
  }
  std::vector<std::unique_ptr<Answer>> answers = ask_all_threads(signal);
  await(answers, std::chrono::seconds(2));
  // To ignore a signal throws away those that are pending; else the handler of before, which ends the process if it is
  // the default, would get them from threads that have blocked the signal meanwhile.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(signal, &ignore, nullptr);
  sigaction(signal, &before, nullptr);

  for (auto& answer : answers) {
    write_stack(fd, *answer);
    if (answer->state == Answer::kAsked) late.push_back(std::move(answer));
  }
}

Watchdog::Watchdog(WatchdogOptions options)
    : timeout_([&] {
        const auto timeout = options.timeout ? options.timeout : watchdog_timeout_from_environment();
        return timeout && timeout->count() > 0 ? timeout : std::nullopt;
      }()),
      on_silence_(std::move(options.on_silence)) {
  if (timeout_) thread_ = std::jthread([this] { watch(); });
}

void Watchdog::stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  changed_.signal_all();
  while (caller_ != std::thread::id() && caller_ != std::this_thread::get_id()) changed_.wait(mu_);
}

void Watchdog::watch() {
  pthread_setname_np(pthread_self(), "watchdog");
  while (wait_for_silence()) {
    on_silence_ ? on_silence_() : bark(*timeout_);
    end_call();
  }
}

bool Watchdog::wait_for_silence() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const Clock::duration silent = Clock::now().time_since_epoch() - last_alive_.load(std::memory_order_relaxed);
    if (silent >= *timeout_) {
      caller_ = std::this_thread::get_id();
      return true;
    }
    changed_.wait_for(mu_, absl::FromChrono(*timeout_ - silent));
  }
  return false;
}

void Watchdog::end_call() {
  alive();  // The next silence begins now.
  absl::MutexLock lock(&mu_);
  caller_ = {};
  changed_.signal_all();
}

}  // namespace muster
