#include "muster/cluster/server.h"

#include <cstdlib>
#include <iostream>
#include <limits>

#include "muster/cluster/resolvers/resolver_from_flags.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

struct ServerFlags {
  std::string cluster, task_type, address, credentials;
  int task_index = 0;
  int threads = 0;
  double lease = std::chrono::duration<double>(kUsualLease).count();
  double linger = 0;
  uint64_t memory = 0, gpu_memory = 0, under_way = 0;
  bool insecure = false;
  std::vector<std::string> storage, data;
};

int serve(const ServerFlags& flags) {
  std::vector<std::string> words{"muster"};
  auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {"--" + name, value});
  };
  add("cluster", flags.cluster);
  add("task_type", flags.task_type);
  if (!flags.task_type.empty()) add("task_index", std::to_string(flags.task_index));
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  if (flags.cluster.empty() && std::getenv("TF_CONFIG") == nullptr) {
    throw invalid_argument(
        "which cluster? Give --cluster, a file with JSON or the JSON itself, or set TF_CONFIG; one task alone is "
        "--cluster '{\"worker\": [\"localhost:2222\"]}' --task_type worker --task_index 0");
  }
  const SimpleClusterResolver resolver = resolver_from_flags(static_cast<int>(arguments.size()), arguments.data());
  const std::optional<TaskId> task = resolver.task();
  if (!task) throw invalid_argument("which task is this? Give --task_type and --task_index, or set TF_CONFIG");

  ServerOptions options{.cluster = resolver.cluster_spec(), .task = *task, .address = flags.address};
  options.insecure = flags.insecure;
  options.worker.storage = flags.storage;
  options.worker.data = flags.data;
  if (flags.memory > 0) options.worker.run_memory = static_cast<int64_t>(flags.memory);
  if (flags.under_way > 0) options.max_bytes_under_way = static_cast<int64_t>(flags.under_way);
  options.lease = std::chrono::milliseconds(static_cast<int64_t>(flags.lease * 1'000));
  options.linger = std::chrono::milliseconds(static_cast<int64_t>(flags.linger * 1'000));
  if (!flags.credentials.empty()) {
    options.credentials = read_credentials(flags.credentials, str_cat(task->job, "-", task->index));
  }
  options.worker.devices.gpu_memory = static_cast<int64_t>(flags.gpu_memory);
  if (flags.threads > 0) options.worker.cores = flags.threads;
  Server server(std::move(options));
  // For whoever has started it and waits: one line, when it can be reached.
  std::cout << "listening " << server.task() << " " << server.address() << std::endl;
  return server.join();
}

}  // namespace

void add_server(CLI::App& muster) {
  auto flags = std::make_shared<ServerFlags>();
  CLI::App* command = muster.add_subcommand("server", "Run a task of a cluster; it needs no code of yours");
  command->add_option("--cluster", flags->cluster,
                      "A file with the cluster as JSON, or the JSON itself; else TF_CONFIG");
  command->add_option("--task_type", flags->task_type, "worker, ps, chief, evaluator or any other job");
  command->add_option("--task_index", flags->task_index, "Its number in the job");
  command->add_option("--address", flags->address, "Listen here instead of at the cluster's address; port 0 picks one");
  command->add_option("--credentials", flags->credentials, "A directory that `muster certs` has made");
  command->add_option("--threads", flags->threads, "Of libtorch's ops; else all cores, or this task's share of them")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--memory", flags->memory,
                   "Bytes that the tensors of one run may have at once (8GiB, 500MB); else nine tenths of what the "
                   "machine or its container has")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(uint64_t{1}, static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
  command
      ->add_option(
          "--under-way", flags->under_way,
          "Bytes that all calls may take at once, what they bring and what they are answered (1GiB); more wait")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 50));
  command
      ->add_option("--gpu-memory", flags->gpu_memory, "Bytes that its tensors may have on each GPU; else all there is")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 50));
  command->add_option("--storage", flags->storage,
                      "A directory below which checkpoints and caches of datasets may be written and read");
  command->add_option("--data", flags->data, "A directory below which datasets may read files");
  command
      ->add_option("--lease", flags->lease,
                   "Seconds after which a client that is not heard of is gone, and what it has left here goes")
      ->check(seconds_between(0.1, 365 * 24 * 3600))
      ->capture_default_str();
  command
      ->add_option("--linger", flags->linger,
                   "Seconds that it goes on after a SIGTERM or SIGINT while somebody has something here, such as a job "
                   "that saves when all of its processes are told to end; a second one ends it")
      ->check(seconds_between(0, 24 * 3600))
      ->capture_default_str();
  command->add_flag("--insecure", flags->insecure, "Listen beyond this machine without TLS");
  command->footer(
      "Example, two tasks on this machine, each in a terminal of its own:\n"
      "  muster server --cluster '{\"worker\": [\"localhost:2222\"], \"ps\": [\"localhost:2223\"]}' --task_type worker "
      "--task_index 0\n"
      "  muster server --cluster '{\"worker\": [\"localhost:2222\"], \"ps\": [\"localhost:2223\"]}' --task_type ps "
      "--task_index 0");
  command->callback([flags] { serve(*flags); });
}

}  // namespace muster::tools
