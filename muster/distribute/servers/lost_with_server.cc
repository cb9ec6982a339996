#include "muster/distribute/servers/lost_with_server.h"

#include <optional>
#include <string>

#include "muster/runtime/variables/no_value.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

Status lost_with_server(const Status& failure) {
  const std::string& task = failure.task();
  const std::optional<std::string> variable = variable_without_value(failure);
  if (!variable || !task.starts_with("/job:ps/")) return failure;
  const std::string of_user = variable->substr(name_in_container(container_of(*variable), "").size());
  return {StatusCode::kUnavailable,
          str_cat("variable \"", of_user, "\" was lost with ", task,
                  ", which was restarted or has not heard of this process for a lease; Checkpoints::restore() of a "
                  "checkpoint that has it, or assign(), gives it a "
                  "value again"),
          task};
}

}  // namespace muster
