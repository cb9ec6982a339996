// The subcommands of `muster`, each in the file of its name. A subcommand declares its options and, as its callback,
// does its work; it throws for what goes wrong.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::tools {

void add_bench(CLI::App& muster);
void add_certs(CLI::App& muster);
void add_dump(CLI::App& muster);
void add_export(CLI::App& muster);
void add_first_result(CLI::App& muster);
void add_in_step_member(CLI::App& muster);
void add_plot(CLI::App& muster);
void add_run(CLI::App& muster);
void add_run_model(CLI::App& muster);
void add_server(CLI::App& muster);
void add_simulate(CLI::App& bench);
void add_simulated_workers(CLI::App& muster);
void add_status(CLI::App& muster);

// A number of seconds, which is not one if it is not a number: CLI::Range takes that.
inline CLI::Validator seconds_between(double least, double most) {
  auto check = [least, most](const std::string& text) {
    double seconds = 0;
    const bool fits = CLI::detail::lexical_cast(text, seconds) && seconds >= least && seconds <= most;
    return fits ? std::string()
                : "\"" + text + "\", expected " + CLI::detail::to_string(least) + " to " +
                      CLI::detail::to_string(most) + " seconds";
  };
  return CLI::Validator(check, "SECONDS");
}

}  // namespace muster::tools
