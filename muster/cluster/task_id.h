#pragma once

#include <compare>
#include <ostream>
#include <string>
#include <utility>

#include "muster/base/strings.h"

namespace muster {

// One process of a cluster: the third worker is {"worker", 2}. A value; sorted by job, then by index.
struct TaskId {
  std::string job;
  int index;

  // "/job:worker/replica:0/task:2", which is also how the names of its devices begin.
  std::string to_string() const { return str_cat("/job:", job, "/replica:0/task:", index); }

  auto operator<=>(const TaskId&) const = default;

  template <class H>
  friend H AbslHashValue(H hash, const TaskId& task) {
    return H::combine(std::move(hash), task.job, task.index);
  }
};

inline std::ostream& operator<<(std::ostream& out, const TaskId& task) { return out << task.to_string(); }

}  // namespace muster
