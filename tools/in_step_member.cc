#include "bench/workloads.h"
#include "tools/subcommands.h"

namespace muster::tools {

// The other processes of `muster bench allreduce` and its like; nobody else needs it, so no help shows it.
void add_in_step_member(CLI::App& muster) {
  auto cluster = std::make_shared<std::string>(), workload = std::make_shared<std::string>();
  auto index = std::make_shared<int>(1);
  CLI::App* command = muster.add_subcommand("in-step-member")->group("");
  command->add_option("--cluster", *cluster)->required();
  command->add_option("--index", *index)->required();
  command->add_option("--workload", *workload)->required();
  command->callback([=] { bench::in_step_member(ClusterSpec::from_json(*cluster), *index, *workload); });
}

}  // namespace muster::tools
