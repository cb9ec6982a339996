#include "tools/chart.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

namespace muster::tools {
namespace {

template <class Of>
Axis axis_over(const Chart& chart, int ticks, AxisKind kind, const Of& of) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const ChartCurve& each : chart.curves) {
    for (const ScalarEvent& point : each.curve->points) {
      if (!std::isfinite(point.value)) continue;
      least = std::min(least, of(point));
      most = std::max(most, of(point));
    }
  }
  return axis_for(least, most, ticks, kind);
}

}  // namespace

Axis axis_for(double least, double most, int ticks, AxisKind kind) {
  const std::optional<double> only = least == most ? std::optional(least) : std::nullopt;
  if (only) {  // room around it
    const double room = least == 0 || kind == AxisKind::kSteps ? 1 : std::abs(least) * 0.1;
    least -= room;
    most += room;
  }
  // The step is 1, 2 or 5 times a power of ten.
  const double about = (most - least) / ticks;
  const double power = std::pow(10, std::floor(std::log10(about)));
  const double times = about / power;
  double step = power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
  constexpr double kNearly = 1e-9;  // of a step: what is so near to a tick is on it
  double first = 0, last = 0;
  if (kind == AxisKind::kSteps) {
    step = std::max(step, 1.0);
    first = std::ceil(least / step);
    last = std::floor(most / step);
  } else {
    first = std::floor(least / step + kNearly);
    last = std::ceil(most / step - kNearly);
    least = first * step;
    most = last * step;
  }
  Axis axis{least, most, {}};
  if (only && kind == AxisKind::kSteps) {  // nobody has taken those beside it
    axis.ticks.push_back(*only);
    return axis;
  }
  for (double number = first; number <= last; ++number) axis.ticks.push_back(number * step + 0.0);  // 0, not -0
  return axis;
}

std::string number_text(double number) {
  return std::abs(number) >= 1'000 && std::abs(number) < 1e7 ? absl::StrFormat("%.0f", number)
                                                             : absl::StrFormat("%.4g", number);
}

Axis Chart::x_axis(int ticks) const {
  return axis_over(*this, ticks, AxisKind::kSteps,
                   [](const ScalarEvent& point) { return static_cast<double>(point.step); });
}

Axis Chart::y_axis(int ticks) const {
  return axis_over(*this, ticks, AxisKind::kValues, [](const ScalarEvent& point) { return point.value; });
}

std::vector<std::vector<ScalarEvent>> pieces_of(const ScalarCurve& curve) {
  std::vector<std::vector<ScalarEvent>> pieces(1);
  for (const ScalarEvent& point : curve.points) {
    if (std::isfinite(point.value)) {
      pieces.back().push_back(point);
    } else if (!pieces.back().empty()) {
      pieces.emplace_back();
    }
  }
  if (pieces.back().empty()) pieces.pop_back();
  return pieces;
}

std::vector<Chart> charts_of(const std::vector<ScalarCurve>& curves) {
  std::map<std::string, size_t> runs;
  for (const ScalarCurve& curve : curves) runs.emplace(curve.run, 0);
  for (size_t number = 0; auto& [run, colour] : runs) colour = number++;
  std::vector<Chart> charts;
  for (const ScalarCurve& curve : curves) {
    if (pieces_of(curve).empty()) continue;
    if (charts.empty() || charts.back().tag != curve.tag) charts.push_back({curve.tag, {}});
    charts.back().curves.push_back({&curve, runs[curve.run]});
  }
  return charts;
}

}  // namespace muster::tools
