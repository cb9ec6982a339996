#include "bench/simulate.h"

#include <memory>

#include "muster/cluster/resolvers/resolver_from_flags.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

void add_delays(CLI::App& command, bench::Delays& delays) {
  command.add_option("--delay", delays.mean_ms, "Milliseconds that a message takes at a worker, on average")
      ->check(CLI::Range(0.001, 3.6e6))
      ->capture_default_str();
  command.add_option("--distribution", delays.distribution, "Of these milliseconds")
      ->check(CLI::IsMember({"exponential", "constant", "lognormal"}))
      ->capture_default_str();
  command.add_option("--stragglers", delays.stragglers, "Share of workers that take longer")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--factor", delays.factor, "How much longer")->check(CLI::Range(1.0, 1e6))->capture_default_str();
}

}  // namespace

void add_simulate(CLI::App& bench) {
  auto simulation = std::make_shared<bench::Simulation>();
  CLI::App* command = bench.add_subcommand(
      "simulate", "A real coordinator and real parameter servers with workers that compute nothing");
  command->add_option("--workers", simulation->workers)->check(CLI::Range(1, 20'000))->capture_default_str();
  command->add_option("--ps", simulation->ps)->check(CLI::Range(1, 1'000))->capture_default_str();
  command->add_option("--processes", simulation->processes, "That the workers share")
      ->check(CLI::Range(1, 1'000))
      ->capture_default_str();
  command->add_option("--seconds", simulation->seconds, "To measure for")
      ->check(seconds_between(0.1, 86'400))
      ->capture_default_str();
  command->add_option("--cut", simulation->cut_seconds, "Seconds for which workers are off the network; 0: never")
      ->check(seconds_between(0, 3'600))
      ->capture_default_str();
  command->add_option("--cut-share", simulation->cut_share, "Share of workers that are")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_delays(*command, simulation->delays);
  command->callback([simulation] { bench::simulate(*simulation); });
}

// The processes of `muster bench simulate`; nobody else needs it, so no help shows it.
void add_simulated_workers(CLI::App& muster) {
  struct Flags {
    std::string cluster;
    int first = 0, count = 1;
    double cut_share = 1;
    bench::Delays delays;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = muster.add_subcommand("simulated-workers")->group("");
  command->add_option("--cluster", flags->cluster)->required();
  command->add_option("--first", flags->first);
  command->add_option("--count", flags->count);
  command->add_option("--cut-share", flags->cut_share);
  add_delays(*command, flags->delays);
  command->callback([flags] {
    bench::run_simulated_workers(ClusterSpec::from_json(flags->cluster), flags->first, flags->count, flags->delays,
                                 flags->cut_share);
  });
}

}  // namespace muster::tools
