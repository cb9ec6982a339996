// The subcommands of `muster`, each in the file of its name. A subcommand declares its options and, as its callback,
// does its work; it throws for what goes wrong.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::tools {

void add_bench(CLI::App& muster);
void add_certs(CLI::App& muster);
void add_dump(CLI::App& muster);
void add_first_result(CLI::App& muster);
void add_server(CLI::App& muster);
void add_status(CLI::App& muster);

}  // namespace muster::tools
