#include "muster/cluster/resolvers/resolver_from_flags.h"

#include <absl/strings/str_join.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/status.h"
#include "muster/cluster/read_file.h"
#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"

namespace muster {
namespace {

struct Flags {
  std::optional<std::string> cluster{}, task_type{};
  std::optional<int> task_index{};
};

Flags parse_flags(int argc, const char* const* argv) {
  Flags flags;
  if (argc == 0) return flags;
  CLI::App app;
  app.set_help_flag();  // --help is the program's own.
  app.allow_extras();
  app.add_option("--cluster", flags.cluster)->take_last();
  app.add_option("--task_type", flags.task_type)->take_last();
  app.add_option("--task_index", flags.task_index)->take_last();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    throw invalid_argument("command line: ", error.what());
  }
  return flags;
}

ClusterSpec cluster_of(const std::string& flag) {
  const size_t first = flag.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && flag[first] == '{';
  return is_json ? ClusterSpec::from_json(flag, "--cluster")
                 : ClusterSpec::from_json(read_file(flag), flag + ": cluster");
}

void check_task(const ClusterSpec& cluster, const std::optional<std::string>& type, std::optional<int> index) {
  if (cluster.empty() || (!type && !index)) return;
  if (!type) throw invalid_argument("--task_type (or TF_CONFIG): missing; which job is task ", *index, " of?");
  if (*type == "evaluator" && !cluster.contains(*type)) return;
  if (!cluster.contains(*type)) {
    throw invalid_argument("--task_type (or TF_CONFIG): no job \"", *type, "\" in the cluster, which has ",
                           absl::StrJoin(cluster.jobs(), ", "));
  }
  if (!index)
    throw invalid_argument("--task_index (or TF_CONFIG): missing; which task of job \"", *type, "\" is this?");
  if (!cluster.contains(TaskId{*type, *index})) {
    throw invalid_argument("--task_index (or TF_CONFIG): no task ", *index, " in job \"", *type, "\", which has ",
                           cluster.num_tasks(*type));
  }
}

}  // namespace

SimpleClusterResolver resolver_from_flags(int argc, const char* const* argv) {
  const Flags flags = parse_flags(argc, argv);
  const bool all_said = flags.cluster && flags.task_type && flags.task_index;
  TfConfigClusterResolverOptions said{.task_type = flags.task_type, .task_index = flags.task_index};
  if (all_said) said.text = "{}";
  const TfConfigResolver config(std::move(said));
  ClusterSpec cluster = flags.cluster ? cluster_of(*flags.cluster) : config.cluster_spec();
  check_task(cluster, config.task_type(), config.task_index());
  return SimpleClusterResolver(std::move(cluster), {.task_type = config.task_type(),
                                                    .task_index = config.task_index(),
                                                    .master = config.session_master().value_or(""),
                                                    .rpc_layer = config.rpc_layer(),
                                                    .environment = config.environment()});
}

}  // namespace muster
