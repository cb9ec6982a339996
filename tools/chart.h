// What drawings of curves have in common, in a terminal or as SVG: a chart for each tag, with a curve for each run.
#pragma once

#include <string>
#include <vector>

#include "muster/fit/tensorboard/event_reader.h"

namespace muster::tools {

// From `least` to `most`, with round numbers in between.
struct Axis {
  double least, most;
  std::vector<double> ticks;

  double place(double value) const { return (value - least) / (most - least); }  // 0 to 1
};

// An axis for what lies between these, which it contains, with about so many ticks. kSteps: whole numbers, which begin
// and end where the data does; kValues: begins and ends with a tick.
enum class AxisKind { kSteps, kValues };
Axis axis_for(double least, double most, int ticks, AxisKind kind);
std::string number_text(double number);  // four digits

struct ChartCurve {
  const ScalarCurve* curve;
  size_t colour;  // the number of its run among all that are drawn, so that a run has one colour in all charts
};

struct Chart {
  std::string tag;
  std::vector<ChartCurve> curves;

  // Over all finite points. REQUIRES: there is one.
  Axis x_axis(int ticks) const;
  Axis y_axis(int ticks) const;
};

// The finite points of a curve in pieces: where a value is no number, the line is broken.
std::vector<std::vector<ScalarEvent>> pieces_of(const ScalarCurve& curve);

// Of curves that are sorted by tag; those without a finite point are left out.
std::vector<Chart> charts_of(const std::vector<ScalarCurve>& curves);

struct TerminalOptions {
  int width;    // in columns
  bool colour;  // else curves are told apart by the names at their ends alone
};
std::string draw_in_terminal(const std::vector<Chart>& charts, const TerminalOptions& options);

std::string draw_as_svg(const std::vector<Chart>& charts);

}  // namespace muster::tools
