#include <iostream>

#include "muster/base/strings.h"
#include "tools/subcommands.h"

namespace {

// CLI11 says "A subcommand is required" of a word that is none, and of no word. `word`: null for none.
void check_subcommand(const CLI::App& muster, const char* word) {
  std::string known;
  for (const CLI::App* command : muster.get_subcommands({})) {
    if (word != nullptr && command->check_name(word)) return;
    if (!command->get_group().empty()) known += (known.empty() ? "" : ", ") + command->get_name();
  }
  const std::string complaint =
      word == nullptr ? "expected a command: " : muster::str_cat("there is no command \"", word, "\", only ");
  throw CLI::ParseError(complaint + known, CLI::ExitCodes::ExtrasError);
}

}  // namespace

// Exit codes: 0 for success, 1 for an error, 2 for a call that was not understood.
int main(int argc, char** argv) {
  CLI::App muster("Distributed training for libtorch programs.", "muster");
  muster.require_subcommand(1);
  muster.get_formatter()->column_width(34);
  muster::tools::add_dump(muster);
  muster::tools::add_bench(muster);
  muster::tools::add_first_result(muster);
  muster::tools::add_in_step_member(muster);
  muster::tools::add_certs(muster);
  muster::tools::add_plot(muster);
  muster::tools::add_run(muster);
  muster::tools::add_export(muster);
  muster::tools::add_run_model(muster);
  muster::tools::add_server(muster);
  muster::tools::add_simulated_workers(muster);
  muster::tools::add_status(muster);
  try {
    if (argc < 2 || argv[1][0] != '-') check_subcommand(muster, argc < 2 ? nullptr : argv[1]);
    muster.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return muster.exit(asked_for_help);
  } catch (const CLI::RuntimeError& failed) {
    return failed.get_exit_code();
  } catch (const CLI::ParseError& misunderstood) {
    std::cerr << "muster: " << misunderstood.what() << "\n"
              << "Try \"muster "
              << (muster.get_subcommands().empty() ? "" : muster.get_subcommands()[0]->get_name() + " ")
              << "--help\".\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "muster: " << error.what() << "\n";
    return 1;
  }
}
