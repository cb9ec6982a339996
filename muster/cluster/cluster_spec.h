#pragma once

#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/cluster/task_id.h"

namespace muster {

namespace proto {
class ClusterDef;
}

// Who is in a cluster: jobs by name, each with the addresses of its tasks. A job may be sparse, that is know only some
// of its tasks: a worker need not know the other workers. A value.
// Invariant: names of jobs are made of letters, digits, '_', '-' and '.'; addresses are "host:port", each of one task
// only (but for port 0, which stands for any free one); indices are below kMaxTasks.
class ClusterSpec {
 public:
  static constexpr int kMaxTasks = 1 << 20;  // in one job, so that a stranger's index costs no memory

  using Tasks = std::map<int, std::string>;

  ClusterSpec() = default;

  // `ClusterSpec({{"ps", {"ps0:2222"}}, {"worker", {"worker0:2222", "worker1:2222"}}})`, tasks numbered from 0.
  // All makers throw Error{kInvalidArgument}.
  ClusterSpec(std::initializer_list<std::pair<std::string, std::vector<std::string>>> jobs);
  ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);

  static ClusterSpec sparse(std::map<std::string, Tasks> jobs);

  // `{"worker": ["worker0:2222", "worker1:2222"]}`, or `{"worker": {"1": "worker1:2222"}}` for a sparse job. Errors
  // begin with `name` and the way to the wrong part: `cluster.worker[1]: expected "host:port", got 17`.
  static ClusterSpec from_json(std::string_view text, std::string_view name = "cluster");
  std::string to_json() const;

  static ClusterSpec from_proto(const proto::ClusterDef& def);
  proto::ClusterDef to_proto() const;

  // Sorted.
  std::vector<std::string> jobs() const;
  bool contains(const std::string& job) const { return jobs_.contains(job); }
  bool contains(const TaskId& task) const;

  // How many of the job's tasks are known. These throw Error{kInvalidArgument} for a job or a task that is not there.
  int num_tasks(const std::string& job) const;
  std::vector<int> task_indices(const std::string& job) const;
  const std::string& task_address(const std::string& job, int index) const;
  const std::string& task_address(const TaskId& task) const { return task_address(task.job, task.index); }

  // By index, up to the largest one.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  std::vector<TaskId> all_tasks() const;  // of all jobs, in order
  const Tasks& tasks(const std::string& job) const;

  // Whether the job has all tasks from 0 to its last.
  bool dense(const std::string& job) const;

  // No jobs; a job without tasks is a job.
  bool empty() const { return jobs_.empty(); }
  explicit operator bool() const { return !empty(); }

  // As TensorFlow prints it: "ClusterSpec({'ps': ['ps0:2222'], 'worker': {1: 'worker1:2222'}})".
  std::string to_string() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  std::map<std::string, Tasks> jobs_;
};

std::ostream& operator<<(std::ostream& out, const ClusterSpec& cluster);

// What is wrong with an address, in words: `no port`. Nothing for "worker0:2222", "10.0.0.1:80" and "[::1]:2222".
std::optional<std::string> address_complaint(std::string_view address);

}  // namespace muster
