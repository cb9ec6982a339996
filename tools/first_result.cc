#include "bench/workloads.h"
#include "muster/cluster/resolvers/resolver_from_flags.h"
#include "tools/subcommands.h"

namespace muster::tools {

// The client of `muster bench startup`; nobody else needs it, so no help shows it.
void add_first_result(CLI::App& muster) {
  auto cluster = std::make_shared<std::string>();
  CLI::App* command = muster.add_subcommand("first-result")->group("");
  command->add_option("--cluster", *cluster)->required();
  command->callback([cluster] { bench::first_result(ClusterSpec::from_json(*cluster)); });
}

}  // namespace muster::tools
