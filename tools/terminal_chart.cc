#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>

#include "muster/base/strings.h"
#include "tools/chart.h"

namespace muster::tools {
namespace {

constexpr int kChartRows = 12;                                             // of the picture, without axes and title
constexpr int kTerminalColours[] = {39, 208, 42, 205, 220, 141, 51, 160};  // of the 256 that terminals have

std::string in_colour(const std::string& text, size_t colour, bool wanted) {
  if (!wanted) return text;
  return str_cat("\x1b[38;5;", kTerminalColours[colour % std::size(kTerminalColours)], "m", text, "\x1b[0m");
}

// Pixels in characters of Braille, 2 x 4 each, and the colour of each character.
class Canvas {
 public:
  Canvas(int columns, int rows) : columns_(columns), cells_(static_cast<size_t>(columns * rows)) {}

  int width() const { return 2 * columns_; }

  void set(int x, int y, size_t colour) {
    // How the bits of a character are numbered: the lowest row was added later.
    constexpr uint8_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = cells_[static_cast<size_t>(y / 4 * columns_ + x / 2)];
    cell.dots |= kDots[y % 4][x % 2];
    cell.colour = colour;
  }

  void line(int x0, int y0, int x1, int y1, size_t colour) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      const double part = static_cast<double>(i) / steps;
      set(static_cast<int>(std::lround(x0 + (x1 - x0) * part)), static_cast<int>(std::lround(y0 + (y1 - y0) * part)),
          colour);
    }
  }

  // A point that no line leads to, which as one of eight dots of a character nobody would see.
  void mark(int x, int y, size_t colour) {
    set(x, y, colour);
    cells_[static_cast<size_t>(y / 4 * columns_ + x / 2)].marked = true;
  }

  std::string row(int number, bool colour) const {
    std::string text;
    for (int x = 0; x < columns_; ++x) {
      const Cell& cell = cells_[static_cast<size_t>(number * columns_ + x)];
      if (cell.dots == 0) {
        text += ' ';
        continue;
      }
      if (cell.marked) {
        text += in_colour("●", cell.colour, colour);
        continue;
      }
      // U+2800 and the dots, in UTF-8.
      std::string character = "\xe2";
      character += static_cast<char>(0xa0 | (cell.dots >> 6));
      character += static_cast<char>(0x80 | (cell.dots & 0x3f));
      text += in_colour(character, cell.colour, colour);
    }
    return text;
  }

 private:
  struct Cell {
    uint8_t dots = 0;
    size_t colour = 0;
    bool marked = false;
  };
  const int columns_;
  std::vector<Cell> cells_;
};

// From the top; four are a row of characters.
int pixel_row(const Axis& y, double value) {
  return static_cast<int>(std::lround((1 - y.place(value)) * (4 * kChartRows - 1)));
}

// How many characters a text has on the screen; names in other scripts than Latin may be wider.
int characters_in(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string cut_to(std::string text, int width) {
  if (characters_in(text) <= width) return text;
  while (characters_in(text) > width - 1) {
    do {
      text.pop_back();
    } while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80);
  }
  return text + "…";
}

std::string padded_left(const std::string& text, int width) {
  return std::string(static_cast<size_t>(std::max(0, width - characters_in(text))), ' ') + text;
}

// What stands at the end of a curve: its run and its last value.
struct EndLabel {
  std::string text;
  size_t colour;
  int row;  // where the curve ends
};

// By row; those for which there is no room come under the picture.
std::vector<std::optional<EndLabel>> in_rows(std::vector<EndLabel> labels, std::vector<EndLabel>& left_over) {
  std::vector<std::optional<EndLabel>> rows(kChartRows);
  std::stable_sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
  for (EndLabel& label : labels) {
    int best = -1;
    for (int row = 0; row < kChartRows; ++row) {
      if (rows[static_cast<size_t>(row)]) continue;
      if (best < 0 || std::abs(row - label.row) <= std::abs(best - label.row)) best = row;
    }
    if (best < 0) {
      left_over.push_back(std::move(label));
    } else {
      rows[static_cast<size_t>(best)] = std::move(label);
    }
  }
  return rows;
}

std::string x_labels(const Axis& x, int columns) {
  std::string line;
  for (const double tick : x.ticks) {
    const std::string text = number_text(tick);
    const int centre = static_cast<int>(std::lround(x.place(tick) * (columns - 1)));
    const int begin =
        std::clamp(centre - static_cast<int>(text.size()) / 2, 0, std::max(0, columns - static_cast<int>(text.size())));
    const int used = static_cast<int>(line.size());
    if (used > 0 && begin < used + 2) continue;
    line += std::string(static_cast<size_t>(begin - used), ' ') + text;
  }
  return line;
}

std::string chart_text(const Chart& chart, const TerminalOptions& options) {
  const Axis x = chart.x_axis(5), y = chart.y_axis(4);
  std::vector<EndLabel> labels;
  int margin = 0, labels_width = 0;
  for (const double tick : y.ticks) margin = std::max(margin, static_cast<int>(number_text(tick).size()));
  for (const ChartCurve& each : chart.curves) {
    const ScalarEvent last = pieces_of(*each.curve).back().back();
    const int row = pixel_row(y, last.value) / 4;
    labels.push_back({str_cat(each.curve->run, " ", number_text(last.value)), each.colour, row});
  }
  const int most = std::max(12, options.width / 3);
  for (EndLabel& label : labels) {
    label.text = cut_to(label.text, most);
    labels_width = std::max(labels_width, characters_in(label.text));
  }

  Canvas canvas(std::max(20, options.width - margin - 2 - labels_width - 1), kChartRows);
  for (const ChartCurve& each : chart.curves) {
    for (const std::vector<ScalarEvent>& piece : pieces_of(*each.curve)) {
      int x_before = 0, y_before = 0;
      for (size_t i = 0; i < piece.size(); ++i) {
        const auto step = static_cast<double>(piece[i].step);
        const int x_now = static_cast<int>(std::lround(x.place(step) * (canvas.width() - 1)));
        const int y_now = pixel_row(y, piece[i].value);
        if (piece.size() == 1) canvas.mark(x_now, y_now, each.colour);
        canvas.line(i == 0 ? x_now : x_before, i == 0 ? y_now : y_before, x_now, y_now, each.colour);
        x_before = x_now;
        y_before = y_now;
      }
    }
  }

  std::vector<std::string> y_labels(kChartRows);
  for (const double tick : y.ticks) {
    y_labels[static_cast<size_t>(pixel_row(y, tick) / 4)] = number_text(tick);
  }
  std::vector<EndLabel> left_over;
  const std::vector<std::optional<EndLabel>> ends = in_rows(std::move(labels), left_over);
  std::string text = str_cat(options.colour ? "\x1b[1m" : "", chart.tag, options.colour ? "\x1b[0m" : "", "\n");
  for (int row = 0; row < kChartRows; ++row) {
    const std::string& tick = y_labels[static_cast<size_t>(row)];
    std::string line = padded_left(tick, margin) + (tick.empty() ? " │" : " ┤") + canvas.row(row, options.colour);
    if (const auto& end = ends[static_cast<size_t>(row)])
      line += " " + in_colour(end->text, end->colour, options.colour);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  text += padded_left("", margin) + " └";
  for (int i = 0; i < canvas.width() / 2; ++i) text += "─";
  str_append(text, "\n", padded_left("", margin + 2), x_labels(x, canvas.width() / 2), "\n");
  for (const EndLabel& label : left_over)
    str_append(text, "  ", in_colour(label.text, label.colour, options.colour), "\n");
  return text;
}

}  // namespace

std::string draw_in_terminal(const std::vector<Chart>& charts, const TerminalOptions& options) {
  std::string text;
  for (const Chart& chart : charts) str_append(text, text.empty() ? "" : "\n", chart_text(chart, options));
  return text;
}

}  // namespace muster::tools
