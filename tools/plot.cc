#include <absl/strings/str_join.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>

#include "muster/base/status.h"
#include "muster/fit/tensorboard/event_reader.h"
#include "tools/chart.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

struct PlotOptions {
  std::string directory, svg;
  std::vector<std::string> tags;
};

// Names come from whoever wrote the files, and a terminal does what its control characters say. Those of 8 bits are
// two bytes in UTF-8.
std::string printable(std::string name) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(name[i]); };
  for (size_t i = 0; i < name.size(); ++i) {
    if (byte(i) < 0x20 || byte(i) == 0x7f) name[i] = '?';
    if (byte(i) == 0xc2 && i + 1 < name.size() && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0) name.replace(i, 2, "?");
  }
  return name;
}

// Those curves, in the order in which the tags were asked for; all without.
std::vector<ScalarCurve> chosen(const PlotOptions& options, std::vector<ScalarCurve> curves) {
  if (options.tags.empty()) return curves;
  std::vector<ScalarCurve> found;
  for (const std::string& tag : options.tags) {
    const size_t before = found.size();
    std::copy_if(curves.begin(), curves.end(), std::back_inserter(found),
                 [&](const ScalarCurve& curve) { return curve.tag == tag; });
    if (found.size() > before) continue;
    std::set<std::string> there;
    for (const ScalarCurve& curve : curves) there.insert(curve.tag);
    throw not_found("tag \"", tag, "\": there is none in ", options.directory, ", only ", absl::StrJoin(there, ", "));
  }
  return found;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int said = columns != nullptr ? std::atoi(columns) : 0;
  return said > 0 ? said : 80;
}

void write_svg(const std::string& path, const std::string& svg) {
  std::ofstream out(path, std::ios::binary);
  out << svg << std::flush;
  if (!out) throw unavailable("file \"", path, "\": cannot be written");
}

void run_plot(const PlotOptions& options) {
  ScalarCurves all = scalars_below(options.directory);
  for (ScalarCurve& curve : all.curves) {
    curve.tag = printable(std::move(curve.tag));
    curve.run = printable(std::move(curve.run));
  }
  for (const std::string& run : all.replaced) {
    std::cerr << "muster: run \"" << printable(run)
              << "\" has several trainings that begin at the same step: the newest is drawn; expected a directory for "
                 "each\n";
  }
  for (const Status& damage : all.damaged) std::cerr << "muster: " << damage.message() << "\n";
  if (all.files == 0) {
    throw not_found("directory \"", options.directory, "\": there are no event files (*tfevents*) in it or below");
  }
  if (all.curves.empty()) {
    throw not_found("directory \"", options.directory, "\": there are no scalars in its ", all.files, " event files");
  }
  const std::vector<ScalarCurve> curves = chosen(options, all.curves);
  const std::vector<Chart> charts = charts_of(curves);
  if (charts.empty()) throw not_found("directory \"", options.directory, "\": none of its scalars is a finite number");
  if (!options.svg.empty()) {
    write_svg(options.svg, draw_as_svg(charts));
    std::cout << options.svg << "\n";
    return;
  }
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = ::isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0');
  std::cout << draw_in_terminal(charts, {.width = std::clamp(terminal_width(), 40, 160), .colour = colour});
}

}  // namespace

void add_plot(CLI::App& muster) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* plot = muster.add_subcommand("plot", "Draw the curves of a training from its event files");
  plot->add_option("DIR", options->directory, "Where TensorBoard or SummaryWriter have written; all runs below")
      ->required();
  plot->add_option("--svg", options->svg, "Write a picture to this file instead of drawing in the terminal")
      ->type_name("FILE");
  plot->add_option("--tags", options->tags, "Only these, as in epoch_loss,epoch_accuracy")
      ->delimiter(',')
      ->type_name("TAG,...");
  plot->callback([options] { run_plot(*options); });
}

}  // namespace muster::tools
