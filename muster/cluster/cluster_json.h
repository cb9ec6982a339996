// Reads the JSON of strangers; what is wrong with it is named by the way to it. For the resolvers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "muster/cluster/cluster_spec.h"

namespace muster {

// Throws Error{kInvalidArgument} that begins with `name`.
nlohmann::json parse_json(std::string_view text, std::string_view name);

// The value for an error message: `17`, `"text"`, `a list`.
std::string describe(const nlohmann::json& value);

// `name` is the way to `value`: "TF_CONFIG: cluster". Throws Error{kInvalidArgument}.
ClusterSpec cluster_spec_of(const nlohmann::json& value, std::string_view name);

// A task's index, as a number or as digits in a text. Throws Error{kInvalidArgument} that begins with `name`.
int task_index_of(const nlohmann::json& value, std::string_view name);

}  // namespace muster
