#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "muster/base/status.h"
#include "muster/cluster/cluster_json.h"
#include "muster/cluster/resolvers/environment_variable.h"

namespace muster {
namespace {

using nlohmann::json;

const json* find(const json& object, const char* key) {
  auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> text_setting(const json& config, const char* key) {
  const json* value = find(config, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw invalid_argument("TF_CONFIG: ", key, ": expected a text, got ", describe(*value));
  return value->get<std::string>();
}

// Some launchers number their jobs.
std::string task_type_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  throw invalid_argument("TF_CONFIG: task.type: expected the name of a job, got ", describe(value));
}

}  // namespace

struct TfConfigResolver::Parsed {
  explicit Parsed(TfConfigClusterResolverOptions options)
      : own{.task_type = std::move(options.task_type),
            .task_index = options.task_index,
            .devices = std::move(options.devices)} {
    const std::string text = options.text ? *options.text : environment_variable("TF_CONFIG").value_or("{}");
    const json config = parse_json(text, "TF_CONFIG");
    if (!config.is_object()) throw invalid_argument("TF_CONFIG: expected an object, got ", describe(config));
    if (const json* value = find(config, "cluster")) cluster = cluster_spec_of(*value, "TF_CONFIG: cluster");
    if (const json* task = find(config, "task")) read_task(*task);
    own.rpc_layer = options.rpc_layer ? *options.rpc_layer : text_setting(config, "rpc_layer").value_or("");
    own.environment = options.environment ? *options.environment : text_setting(config, "environment").value_or("");
    session_master = text_setting(config, "session_master");
  }

  void read_task(const json& task) {
    if (!task.is_object()) throw invalid_argument("TF_CONFIG: task: expected an object, got ", describe(task));
    const json* type = find(task, "type");
    const json* index = find(task, "index");
    if (type != nullptr && !own.task_type) own.task_type = task_type_of(*type);
    if (index != nullptr && !own.task_index) own.task_index = task_index_of(*index, "TF_CONFIG: task.index");
  }

  ResolverTask own;
  ClusterSpec cluster;
  std::optional<std::string> session_master;
};

TfConfigResolver::TfConfigResolver(TfConfigClusterResolverOptions options)
    : TfConfigResolver(std::make_unique<Parsed>(std::move(options))) {}

TfConfigResolver::TfConfigResolver(std::unique_ptr<Parsed> parsed)
    : ClusterResolver(std::move(parsed->own)),
      cluster_(std::move(parsed->cluster)),
      session_master_(std::move(parsed->session_master)) {}

std::string TfConfigResolver::find_master(const MasterQuery& query) const {
  if (session_master_) return *session_master_;
  const std::vector<std::string> jobs = cluster_.jobs();
  const bool alone = jobs.empty() || (jobs.size() == 1 && cluster_.num_tasks(jobs[0]) == 1);
  return alone ? "" : ClusterResolver::find_master(query);
}

TfConfigResolver TfConfigClusterResolver(TfConfigClusterResolverOptions options) {
  return TfConfigResolver(std::move(options));
}

}  // namespace muster
