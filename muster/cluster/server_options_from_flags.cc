#include "muster/cluster/server_options_from_flags.h"

#include <CLI/CLI.hpp>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/resolver_from_flags.h"

namespace muster {

ServerOptions server_options_from_flags(int argc, const char* const* argv) {
  ServerOptions options = server_options(resolver_from_flags(argc, argv));
  std::string credentials;
  std::vector<std::string> storage, data;
  CLI::App app;
  app.set_help_flag();  // --help is the program's own.
  app.allow_extras();
  app.add_option("--credentials", credentials)->take_last();
  app.add_option("--storage", storage)->take_all();
  app.add_option("--data", data)->take_all();
  app.add_flag("--insecure", options.insecure);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    throw invalid_argument("command line: ", error.what());
  }
  options.worker.storage = std::move(storage);
  options.worker.data = std::move(data);
  if (!credentials.empty()) {
    options.credentials = read_credentials(credentials, str_cat(options.task.job, "-", options.task.index));
  }
  return options;
}

}  // namespace muster
