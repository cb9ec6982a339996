#include "bench/workloads.h"
#include "tools/subcommands.h"

namespace muster::tools {

// The second process of `muster bench allreduce` and `mwms_mlp`; nobody else needs it, so no help shows it.
void add_in_step_member(CLI::App& muster) {
  auto cluster = std::make_shared<std::string>(), workload = std::make_shared<std::string>();
  CLI::App* command = muster.add_subcommand("in-step-member")->group("");
  command->add_option("--cluster", *cluster)->required();
  command->add_option("--workload", *workload)->required();
  command->callback([=] { bench::in_step_member(ClusterSpec::from_json(*cluster), *workload); });
}

}  // namespace muster::tools
