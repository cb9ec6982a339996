#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "muster/base/status.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_channel.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

using RunClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLastWords{500};  // of what a process has started and not ended
constexpr std::chrono::seconds kPause{1};             // between two starts of a server
constexpr std::chrono::seconds kOneSignal{1};         // in which those that come are one: timeout(1) sends each twice

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};  // what is passed on to the program

struct RunFlags {
  int workers = 0;
  int ps = 0;
  double grace = 10, notice = 30;
  std::vector<std::string> storage{}, data{};
  std::string write_cluster{};
  std::vector<std::string> command;
};

volatile sig_atomic_t stop_signal = 0;  // the first that this command got
volatile sig_atomic_t stop_again = 0;   // there was another one

void on_stop(int number) {
  if (stop_signal == 0) {
    stop_signal = number;
  } else if (number != SIGHUP) {  // which a terminal adds that is closed
    stop_again = 1;
  }
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1'000));
}

// Ports of this machine that are free now. All are found before the first is let go, so they differ.
std::vector<int> free_ports(int count) {
  std::vector<int> sockets, ports;
  for (int i = 0; i < count; ++i) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw unavailable("run: no free port: ", std::strerror(errno));
    }
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (int fd : sockets) ::close(fd);
  return ports;
}

// All of the job's tasks are on this machine, and the program would make them with its first checkpoint.
void make_directories(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw unavailable("run: --storage \"", path, "\" cannot be made: ", error.message());
  }
}

// For who wants to know the addresses, as `muster status --cluster` does.
void write_cluster(const std::string& path, const nlohmann::json& cluster) {
  std::ofstream out(path, std::ios::trunc);
  out << cluster.dump() << "\n" << std::flush;
  if (!out) throw unavailable("run: --write-cluster \"", path, "\" cannot be written: ", std::strerror(errno));
}

// Ends what a command leaves that was killed: who is deaf to the SIGTERM that its children get then, and what those
// have started. A process of its own, whom the groups of processes are told of; it knows that the command has ended by
// the end of the pipe between them.
class Undertaker {
 public:
  // `grace`: from the SIGTERM to the SIGKILL.
  explicit Undertaker(std::chrono::milliseconds grace) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw internal("run: no pipe: ", std::strerror(errno));
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);  // who kills a whole group means the command and its program
      for (const int number : kStops) ::signal(number, SIG_IGN);
      ::close(ends[1]);
      // Who reads what the command prints waits for all that could print.
      const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, fd);
      end_what_is_left(groups_at_the_end(ends[0]), grace);
      ::_exit(0);
    }
    const int error = errno;
    ::close(ends[0]);
    to_it_ = ends[1];
    if (pid_ < 0) throw unavailable("run: no process: ", std::strerror(error));
  }
  // The command has seen to all itself.
  ~Undertaker() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(to_it_);
  }
  Undertaker(const Undertaker&) = delete;
  Undertaker& operator=(const Undertaker&) = delete;

  // Called by the process that begins one.
  void note_own_group() const { tell(::getpid()); }
  // Its number may be another's soon.
  void note_end_of_group(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t number) const {
    [[maybe_unused]] const ssize_t told = ::write(to_it_, &number, sizeof number);  // in vain if it was killed
  }

  static std::set<pid_t> groups_at_the_end(int pipe) {
    std::set<pid_t> groups;
    pid_t number = 0;
    for (ssize_t got = 0; (got = ::read(pipe, &number, sizeof number)) != 0;) {
      if (got < 0 && errno != EINTR) break;
      if (got < 0) continue;
      if (number > 0) groups.insert(number);
      if (number < 0) groups.erase(-number);
    }
    return groups;
  }

  static void end_what_is_left(std::set<pid_t> groups, std::chrono::milliseconds grace) {
    const RunClock::time_point end = RunClock::now() + grace;
    for (;;) {
      std::erase_if(groups, [](pid_t group) { return ::kill(-group, 0) != 0; });
      if (groups.empty() || RunClock::now() > end) break;
      ::poll(nullptr, 0, /*timeout=*/50);
    }
    for (const pid_t group : groups) ::kill(-group, SIGKILL);
  }

  pid_t pid_ = -1;
  int to_it_ = -1;
};

// A process of the job, whose lines are shown with its name before them.
struct Member {
  std::string name;
  std::vector<std::string> command{};
  std::string tf_config{};
  bool serves = false;  // this binary, as long as the program runs; started again when it ends before
  std::string address{};
  int starts = 0;
  RunClock::time_point started{};
  pid_t pid = -1;
  int output = -1;
  std::string line{};
  std::optional<int> code{};
  bool has_group = false;  // that the undertaker knows of

  void start(const Undertaker& undertaker) {
    started = RunClock::now();
    ++starts;
    code.reset();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw internal("run: no pipe: ", std::strerror(errno));
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    // What is passed on to a process that is not yet the program waits until it is, or the handler here would have it.
    sigset_t stops, before;
    ::sigemptyset(&stops);
    for (const int number : kStops) ::sigaddset(&stops, number);
    ::sigprocmask(SIG_BLOCK, &stops, &before);
    const pid_t here = ::getpid();
    has_group = true;
    pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);  // a signal of the terminal goes to all of them by way of this command, once
      undertaker.note_own_group();
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // however this command ends; the undertaker sees to the deaf
      if (::getppid() != here) ::_exit(127);
      for (const int number : kStops) ::signal(number, SIG_DFL);
      ::signal(SIGPIPE, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      ::setenv("TF_CONFIG", tf_config.c_str(), 1);
      ::execvp(serves ? "/proc/self/exe" : words[0], words.data());
      std::cerr << "muster run: " << words[0] << ": " << std::strerror(errno) << std::endl;
      ::_exit(127);
    }
    const int error = errno;
    if (pid > 0) ::setpgid(pid, pid);  // here, too: there may be a signal for all of it before it has come so far
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw unavailable("run: no process: ", std::strerror(error));
    ::close(ends[1]);
    output = ends[0];
  }

  void show(std::string_view text) {
    for (const char c : text) {
      line += c;
      if (c == '\n') flush();
    }
  }
  void flush() {
    if (line.empty()) return;
    if (serves && line.starts_with("listening ")) return line.clear();  // for whoever has started it: this command
    if (line.back() != '\n') line += '\n';
    std::cout << "[" << name << "] " << line << std::flush;
    line.clear();
  }
  void read_output() {
    char bytes[4096];
    const ssize_t got = ::read(output, bytes, sizeof bytes);
    if (got > 0) return show({bytes, static_cast<size_t>(got)});
    if (got < 0 && errno == EINTR) return;
    flush();
    ::close(output);
    output = -1;
  }
  void look_whether_it_ended() {
    int status = 0;
    if (code || ::waitpid(pid, &status, WNOHANG) != pid) return;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool is_over() const { return code && output < 0; }
  // What it has started, too, also when it has ended itself.
  void signal(int number) const {
    if (pid > 0 && !is_over()) ::kill(-pid, number);
  }
};

class Job {
 public:
  Job(const RunFlags& flags) : grace_(milliseconds_of(flags.grace)), notice_(milliseconds_of(flags.notice)) {
    std::vector<std::pair<std::string, int>> jobs{{"worker", flags.workers}};
    if (flags.ps > 0) jobs.insert(jobs.end(), {{"ps", flags.ps}, {"chief", 1}});
    std::vector<int> ports = free_ports(flags.workers + flags.ps + 1);
    nlohmann::json cluster;
    for (const auto& [type, count] : jobs) {
      for (int i = 0; i < count; ++i, ports.pop_back()) cluster[type].push_back(str_cat("127.0.0.1:", ports.back()));
    }
    if (!flags.write_cluster.empty()) write_cluster(flags.write_cluster, cluster);
    for (const auto& [type, count] : jobs) {
      for (int i = 0; i < count; ++i) {
        const bool serves = flags.ps > 0 && type != "chief";
        const nlohmann::json config{{"cluster", cluster}, {"task", {{"type", type}, {"index", i}}}};
        members_.push_back({.name = type == "chief" ? type : str_cat(type, " ", i),
                            .command = serves ? server(flags, cluster.dump(), type, i) : flags.command,
                            .tf_config = config.dump(),
                            .serves = serves,
                            .address = cluster[type][static_cast<size_t>(i)].get<std::string>()});
      }
    }
    try {
      for (Member& member : members_) member.start(undertaker_);
    } catch (...) {
      kill_all();  // there will be no destructor
      throw;
    }
  }
  ~Job() { kill_all(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The exit code of the first that failed, else 0.
  int wait() {
    int code = 0;
    bool told = false, killed = false, last_words = false, looked = false, in_vain = false;
    while (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return !m.is_over(); })) {
      read_all();
      if (stop_signal != 0 && !std::exchange(told, true) && !served()) tell_program();
      if (stop_again != 0) hear_again();
      for (Member& member : members_) {
        const bool ran = !member.code;
        member.look_whether_it_ended();
        if (member.is_over() && std::exchange(member.has_group, false)) undertaker_.note_end_of_group(member.pid);
        if (member.serves) {
          if (!killed && !served()) keep_serving(member);
          continue;
        }
        if (!ran || !member.code || *member.code == 0 || code != 0) continue;
        code = *member.code;
        std::cerr << "muster run: " << member.name << " has ended with " << code << std::endl;
        // Those that are left may have something to say of the one that has failed.
        if (next_signal_ == 0) end_all_after(SIGTERM, grace_);
      }
      if (served()) {
        if (!std::exchange(looked, true)) in_vain = code == 0 && stop_signal == 0 && nobody_was_served();
        end_servers();
      }
      // What they have left behind may keep their output open.
      const bool ended = std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.code; });
      if (ended && !std::exchange(last_words, true)) end_all_after(SIGKILL, std::min(grace_, kLastWords));
      if (ended && RunClock::now() > when_ + kLastWords) break;
      if (next_signal_ == 0 || RunClock::now() < when_) continue;
      if (next_signal_ == SIGKILL && !std::exchange(killed, true)) say_who_is_killed();
      for (const Member& member : members_) member.signal(next_signal_);
      if (!ended) end_all_after(SIGKILL, grace_);
    }
    if (in_vain) {
      std::cerr << "muster run: the program has used none of this job's servers; it does so by a "
                   "ParameterServerStrategy, as strategy_named(\"parameter_server\") makes one, or a Session"
                << std::endl;
    }
    return code != 0 ? code : (stop_signal != 0 ? 128 + stop_signal : 0);
  }

 private:
  static std::vector<std::string> server(const RunFlags& flags, const std::string& cluster, const std::string& type,
                                         int index) {
    std::vector<std::string> words{"muster",      "server", "--cluster",    cluster,
                                   "--task_type", type,     "--task_index", std::to_string(index)};
    for (const std::string& directory : flags.storage) words.insert(words.end(), {"--storage", directory});
    for (const std::string& directory : flags.data) words.insert(words.end(), {"--data", directory});
    return words;
  }

  void end_all_after(int number, std::chrono::milliseconds time) {
    next_signal_ = number;
    time_ = time;
    when_ = RunClock::now() + time;
  }

  // A program that saves and ends when it is told to needs its servers for that: they end after it.
  void tell_program() {
    std::cerr << "muster run: told to end: the program has " << seconds(notice_)
              << " s for it (--notice); a second signal ends all at once" << std::endl;
    for (const Member& member : members_) {
      if (!member.serves) member.signal(stop_signal);
    }
    told_at_ = RunClock::now();
    end_all_after(SIGKILL, notice_);
  }

  void hear_again() {
    stop_again = 0;
    if (RunClock::now() < told_at_ + kOneSignal || std::exchange(told_again_, true)) return;
    end_all_after(SIGKILL, {});
  }

  void say_who_is_killed() const {
    for (const Member& member : members_) {
      if (member.serves || member.code) continue;
      std::cerr << "muster run: " << member.name << " is killed: ";
      if (told_again_) {
        std::cerr << "there was a second signal" << std::endl;
      } else {
        std::cerr << "it has not ended " << seconds(time_) << " s after it was told to" << std::endl;
      }
    }
  }

  static double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

  // Whether the program has ended, wherever it ran.
  bool served() const {
    return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.serves || m.code; });
  }

  // Whether there are servers, and no call has come to any of them: the program has trained alone, or not at all. One
  // that does not answer, or that was started anew, may have been called.
  bool nobody_was_served() const {
    bool any = false;
    for (const Member& member : members_) {
      if (!member.serves) continue;
      any = true;
      if (member.starts > 1) return false;
      // Without both, the only call that comes of this look is the look itself.
      const ChannelOptions options{.attempts = 1, .near_memory = false, .lines = false};
      try {
        if (RemoteWorker(std::make_shared<RpcChannel>(member.address, "", options)).status().requests > 1) return false;
      } catch (const Error&) {
        return false;
      }
    }
    return any;
  }

  // Nobody uses them any more, and they have nothing to say.
  void end_servers() const {
    for (const Member& member : members_) {
      if (member.serves) member.signal(SIGKILL);
    }
  }

  // As whatever looks after the tasks of a cluster does.
  void keep_serving(Member& member) const {
    if (!member.is_over() || RunClock::now() < member.started + kPause) return;
    std::cerr << "muster run: " << member.name << " has ended with " << *member.code << " and is started again"
              << std::endl;
    member.start(undertaker_);
  }

  void read_all() {
    std::vector<pollfd> waits;
    std::vector<Member*> of;
    for (Member& member : members_) {
      if (member.output < 0) continue;
      waits.push_back({member.output, POLLIN, 0});
      of.push_back(&member);
    }
    if (::poll(waits.data(), waits.size(), /*timeout=*/50) <= 0) return;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0) of[i]->read_output();
    }
  }

  void kill_all() const {
    for (const Member& member : members_) member.signal(SIGKILL);
  }

  const std::chrono::milliseconds grace_, notice_;
  const Undertaker undertaker_{std::max(grace_, notice_)};  // who is told to end may have something to save
  std::vector<Member> members_;

  // What those that are left get next, and when: this time after it was decided.
  int next_signal_ = 0;
  std::chrono::milliseconds time_{};
  RunClock::time_point when_{}, told_at_{};
  bool told_again_ = false;  // to end, which all do at once then
};

}  // namespace

void add_run(CLI::App& muster) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = muster.add_subcommand(
      "run",
      "Start a program several times on this machine, as the workers of a cluster, each with its TF_CONFIG; or, with\n"
      "--ps, once, as the chief of a cluster of servers");
  // Not required() of CLI11, which says so before anybody looks whether it was mistyped.
  command->add_option("--workers", flags->workers, "How many; required")->check(CLI::Range(1, 1000));
  command->add_option("--ps", flags->ps, "How many parameter servers; these and the workers are `muster server`s then")
      ->check(CLI::Range(1, 1000));
  command->add_option("--data", flags->data, "A directory below which the servers may read files of datasets")
      ->needs("--ps")
      ->allow_extra_args(false);  // what follows is the program
  command
      ->add_option("--storage", flags->storage,
                   "A directory below which the servers may write and read checkpoints and caches of datasets; it is "
                   "made if it is not there")
      ->needs("--ps")
      ->allow_extra_args(false);
  command
      ->add_option("--write-cluster", flags->write_cluster,
                   "A file for the addresses of the tasks, which `muster status --cluster` takes")
      ->type_name("FILE")
      ->check([](const std::string& file) { return file.empty() ? "expected the name of a file" : std::string(); });
  command
      ->add_option(
          "--grace", flags->grace,
          "Seconds that the others have to end by themselves when one has failed, and again when told to, and all "
          "when this command is killed")
      ->check(seconds_between(0, 24 * 3600))
      ->capture_default_str();
  command
      ->add_option("--notice", flags->notice,
                   "Seconds that the program has to save and end when this command gets a SIGTERM or SIGINT, which it "
                   "passes on; its servers end after it")
      ->check(seconds_between(0, 24 * 3600))
      ->capture_default_str();
  command->prefix_command();  // what comes after the flags is the program and its arguments
  command->footer(
      "Examples: muster run --workers 2 ./train --steps 100\n"
      "          muster run --workers 3 --ps 2 --storage /data/checkpoints ./train --steps 100\n"
      "It ends with the exit code of the first worker that fails, or of the chief; servers that end are started "
      "again.\nA second SIGTERM or SIGINT kills all at once.");
  command->callback([flags, command] {
    flags->command = command->remaining();
    if (!flags->command.empty() && flags->command[0].starts_with("-")) {
      throw CLI::ParseError(str_cat("run: there is no flag ", flags->command[0], "; see muster run --help"),
                            CLI::ExitCodes::ExtrasError);
    }
    if (flags->workers == 0) throw CLI::RequiredError("--workers");
    if (flags->command.empty()) throw CLI::ParseError("run: which program?", CLI::ExitCodes::RequiredError);
    make_directories(flags->storage);
    for (const int number : kStops) ::signal(number, on_stop);
    ::signal(SIGPIPE, SIG_IGN);  // a job whose output nobody reads any more goes on, and can save
    if (const int code = Job(*flags).wait(); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace muster::tools
