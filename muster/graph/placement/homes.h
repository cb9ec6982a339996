// Where the instructions and values of a placed program are, task by task.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// The task of a device: "/job:ps/replica:0/task:1" of "/job:ps/replica:0/task:1/device:CPU:0".
std::string task_of_device(const std::string& device);

// The tasks of the program's instructions and of those of its bodies.
void add_tasks(const Program& program, std::set<std::string>& tasks);

struct Homes {
  // `remote_variables`: which values stand for variables of other tasks than `driver`, which has all other arguments.
  Homes(const Program& program, const std::string& driver, const std::map<ValueId, VariableRef>& remote_variables);

  std::vector<std::string> task;    // by instruction: who runs it
  std::vector<bool> several_tasks;  // by instruction: control flow whose bodies are on several; the driver runs it
  std::vector<std::string> home;    // by value: who has it; empty for a constant
};

// The instructions in an order in which the driver hears as seldom as possible from other tasks: what can be done
// before their first answer comes first, then what can be done before the second, and so on. So 26 lookups, each
// written down as "ids, rows, what becomes of them", are one request for all rows. Of what can be done at the same
// time, what others wait for comes first: the metrics of a step are computed while its gradients are on their way.
// Random numbers are drawn in the order of the program.
std::vector<size_t> order_by_rounds(const Program& program, const Aliases& aliases, const Homes& homes,
                                    const std::string& driver);

}  // namespace muster
