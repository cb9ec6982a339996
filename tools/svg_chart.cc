#include <absl/strings/str_format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "muster/base/strings.h"
#include "tools/chart.h"

namespace muster::tools {
namespace {

// In pixels: of a chart with its margins, and of the margins.
constexpr double kWidth = 460, kHeight = 300, kLeft = 62, kRight = 16, kTop = 40, kBottom = 40;
// Okabe and Ito's, which people see apart who see colours differently.
constexpr const char* kSvgColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#e69f00", "#56b4e9", "#6b4c9a", "#555555"};

const char* svg_colour(size_t number) { return kSvgColours[number % std::size(kSvgColours)]; }

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string px(double number) { return absl::StrFormat("%.5g", number); }

class SvgChart {
 public:
  SvgChart(const Chart& chart, double left, double top)
      : chart_(chart), left_(left), top_(top), x_(chart.x_axis(6)), y_(chart.y_axis(5)) {}

  std::string draw() const {
    std::string out = str_cat("<text class=\"title\" x=\"", px(left_ + kLeft), "\" y=\"", px(top_ + 24), "\">",
                              xml_text(chart_.tag), "</text>\n");
    for (const double tick : y_.ticks) {
      str_append(out, line(left_ + kLeft, y(tick), left_ + kWidth - kRight, y(tick), "grid"),
                 text(left_ + kLeft - 8, y(tick) + 4, "end", number_text(tick)));
    }
    const double bottom = top_ + kHeight - kBottom;
    for (const double tick : x_.ticks) {
      str_append(out, line(x(tick), bottom, x(tick), bottom + 4, "axis"),
                 text(x(tick), bottom + 18, "middle", number_text(tick)));
    }
    out += line(left_ + kLeft, bottom, left_ + kWidth - kRight, bottom, "axis");
    for (const ChartCurve& each : chart_.curves) out += curve(each);
    return out;
  }

 private:
  double x(double step) const { return left_ + kLeft + x_.place(step) * (kWidth - kLeft - kRight); }
  double y(double value) const { return top_ + kTop + (1 - y_.place(value)) * (kHeight - kTop - kBottom); }

  static std::string line(double x0, double y0, double x1, double y1, const char* kind) {
    return str_cat("<line class=\"", kind, "\" x1=\"", px(x0), "\" y1=\"", px(y0), "\" x2=\"", px(x1), "\" y2=\"",
                   px(y1), "\"/>\n");
  }
  static std::string text(double x, double y, const char* anchor, const std::string& words) {
    return str_cat("<text x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"", anchor, "\">", xml_text(words),
                   "</text>\n");
  }

  std::string curve(const ChartCurve& each) const {
    const char* colour = svg_colour(each.colour);
    // Where the mouse is on a curve, a browser says which it is.
    std::string out = str_cat("<g><title>", xml_text(each.curve->run), "</title>\n");
    const std::vector<std::vector<ScalarEvent>> pieces = pieces_of(*each.curve);
    if (pieces.size() == 1 && pieces[0].size() == 1) {  // no line shows where it is, so its number does
      const ScalarEvent& point = pieces[0][0];
      out += text(x(static_cast<double>(point.step)) + 8, y(point.value) + 4, "start", number_text(point.value));
    }
    for (const std::vector<ScalarEvent>& piece : pieces) {
      str_append(out, "<polyline stroke=\"", colour, "\" points=\"");
      for (const ScalarEvent& point : piece) {
        str_append(out, &point == &piece.front() ? "" : " ", px(x(static_cast<double>(point.step))), ",",
                   px(y(point.value)));
      }
      out += "\"/>\n";
      constexpr size_t kFew = 30;  // so many can be told apart
      for (size_t i = 0; i < piece.size() && piece.size() <= kFew; ++i) {
        str_append(out, "<circle fill=\"", colour, "\" cx=\"", px(x(static_cast<double>(piece[i].step))), "\" cy=\"",
                   px(y(piece[i].value)), "\" r=\"", piece.size() == 1 ? "4" : "2.5", "\"/>\n");
      }
    }
    return out + "</g>\n";
  }

  const Chart& chart_;
  const double left_, top_;
  const Axis x_, y_;
};

// The runs and their colours, one after the other, and the height that they take.
std::string svg_legend(const std::vector<Chart>& charts, double width, double& height) {
  std::map<size_t, std::string> runs;
  for (const Chart& chart : charts) {
    for (const ChartCurve& each : chart.curves) runs.emplace(each.colour, each.curve->run);
  }
  std::string out;
  double x = kLeft, y = 26;
  for (const auto& [colour, run] : runs) {
    const double own_width = 48 + 7 * static_cast<double>(run.size());  // letters of 12 pixels are about 7 wide
    if (x > kLeft && x + own_width > width) {
      x = kLeft;
      y += 20;
    }
    str_append(out, "<line stroke=\"", svg_colour(colour), "\" stroke-width=\"3\" x1=\"", px(x), "\" y1=\"", px(y - 4),
               "\" x2=\"", px(x + 20), "\" y2=\"", px(y - 4), "\"/>\n<text x=\"", px(x + 26), "\" y=\"", px(y), "\">",
               xml_text(run), "</text>\n");
    x += own_width;
  }
  height = y + 8;
  return out;
}

}  // namespace

std::string draw_as_svg(const std::vector<Chart>& charts) {
  const size_t columns = std::min<size_t>(2, charts.size()), rows = (charts.size() + columns - 1) / columns;
  const double width = kWidth * static_cast<double>(columns);
  double top = 0;
  std::string body = svg_legend(charts, width, top);
  for (size_t i = 0; i < charts.size(); ++i) {
    body +=
        SvgChart(charts[i], kWidth * static_cast<double>(i % columns), top + kHeight * static_cast<double>(i / columns))
            .draw();
  }
  const double height = top + kHeight * static_cast<double>(rows);
  return str_cat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", px(width), "\" height=\"", px(height), "\" viewBox=\"0 0 ",
      px(width), " ", px(height), "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#333\">\n",
      "<style>.title { font-size: 14px; font-weight: bold } .grid { stroke: #e4e4e4 } .axis { stroke: #888 } ",
      "polyline { fill: none; stroke-width: 2; stroke-linejoin: round }</style>\n",
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n", body, "</svg>\n");
}

}  // namespace muster::tools
