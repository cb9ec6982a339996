#include "bench/server_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "muster/base/status.h"

namespace muster::bench {
namespace {

// All are held until all are known, so that none is given twice.
std::vector<std::string> free_addresses(int count) {
  std::vector<int> sockets;
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw internal("no free port");
    }
    sockets.push_back(fd);
    addresses.push_back(str_cat("127.0.0.1:", ntohs(address.sin_port)));
  }
  for (int fd : sockets) ::close(fd);
  return addresses;
}

}  // namespace

pid_t start_self(const std::vector<std::string>& words) {
  const pid_t parent = ::getpid();
  std::vector<char*> arguments;
  std::vector<std::string> all{"muster"};
  all.insert(all.end(), words.begin(), words.end());
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw internal("cannot start a process");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDOUT_FILENO);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

void wait_for(pid_t process) {
  int status = 0;
  if (::waitpid(process, &status, 0) != process || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw internal("a process of the benchmark failed");
  }
}

double resident_memory(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  throw internal("process ", process, " is gone");
}

double cpu_seconds(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the name before it may have anything in it
  std::string skipped;
  double user = 0, system = 0;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  if (!(fields >> user >> system)) throw internal("process ", process, " is gone");
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

ServerProcesses::ServerProcesses(int workers, int ps, bool start, std::vector<std::string> words)
    : words_(std::move(words)) {
  const std::vector<std::string> addresses = free_addresses(workers + ps);
  std::map<std::string, std::vector<std::string>> jobs;
  jobs["worker"] = {addresses.begin(), addresses.begin() + workers};
  if (ps > 0) jobs["ps"] = {addresses.begin() + workers, addresses.end()};
  spec_ = ClusterSpec(jobs);
  if (!start) return;
  for (const TaskId& task : spec_.all_tasks()) this->start(task);
}

ServerProcesses::~ServerProcesses() {
  for (const auto& [task, process] : processes_) ::kill(process, SIGKILL);
  for (const auto& [task, process] : processes_) ::waitpid(process, nullptr, 0);
}

void ServerProcesses::start(const TaskId& task) {
  std::vector<std::string> words{
      "server",    "--cluster", spec_.to_json(), "--task_type", task.job, "--task_index", std::to_string(task.index),
      "--threads", "1"};
  words.insert(words.end(), words_.begin(), words_.end());
  processes_[task] = start_self(words);
}

void ServerProcesses::kill(const TaskId& task) {
  ::kill(pid(task), SIGKILL);
  ::waitpid(pid(task), nullptr, 0);
  processes_.erase(task);
}

pid_t ServerProcesses::pid(const TaskId& task) const {
  auto it = processes_.find(task);
  if (it == processes_.end()) throw not_found(task.to_string());
  return it->second;
}

double loopback_bytes() {
  std::ifstream table("/proc/net/dev");
  for (std::string line; std::getline(table, line);) {
    if (const size_t at = line.find("lo:"); at != std::string::npos) return std::stod(line.substr(at + 3));
  }
  throw internal("no loopback device in /proc/net/dev");
}

}  // namespace muster::bench
