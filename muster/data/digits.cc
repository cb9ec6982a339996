#include "muster/data/digits.h"

#include <array>
#include <cstddef>

#include "muster/runtime/splitmix.h"

namespace muster {
namespace {

constexpr int kSide = 28;
constexpr int kMargin = 1;  // how far a digit moves, to each side
constexpr int kCanvas = kSide + 2 * kMargin;
constexpr int kStroke = 3;
constexpr float kInk = 0.75f, kNoise = 0.25f;

using Canvas = std::array<float, kCanvas * kCanvas>;

struct Box {
  int top, left, bottom, right;
};
// The strokes of a seven-segment display: top, upper left, upper right, middle, lower left, lower right, bottom.
constexpr int kTop = 5, kMiddle = 13, kBottom = 21, kLeft = 8, kRight = 18;
constexpr std::array<Box, 7> kStrokes{{{kTop, kLeft, kTop + kStroke, kRight + kStroke},
                                       {kTop, kLeft, kMiddle + kStroke, kLeft + kStroke},
                                       {kTop, kRight, kMiddle + kStroke, kRight + kStroke},
                                       {kMiddle, kLeft, kMiddle + kStroke, kRight + kStroke},
                                       {kMiddle, kLeft, kBottom + kStroke, kLeft + kStroke},
                                       {kMiddle, kRight, kBottom + kStroke, kRight + kStroke},
                                       {kBottom, kLeft, kBottom + kStroke, kRight + kStroke}}};
// Per digit, the strokes above from the lowest bit on.
constexpr std::array<int, 10> kDigits{0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f};

constexpr std::array<Canvas, 10> drawn() {
  std::array<Canvas, 10> canvases{};
  for (size_t digit = 0; digit < kDigits.size(); ++digit) {
    for (size_t stroke = 0; stroke < kStrokes.size(); ++stroke) {
      if ((kDigits[digit] >> stroke & 1) == 0) continue;
      const Box& box = kStrokes[stroke];
      for (int row = box.top; row < box.bottom; ++row) {
        for (int column = box.left; column < box.right; ++column) {
          canvases[digit][static_cast<size_t>(row * kCanvas + column)] = kInk;
        }
      }
    }
  }
  return canvases;
}
constexpr std::array<Canvas, 10> kCanvases = drawn();

}  // namespace

int draw_digit(uint64_t seed, uint64_t index, float* points) {
  SplitMix random{SplitMix{seed}() ^ SplitMix{~index}()};
  const uint64_t choice = random();
  const auto digit = static_cast<size_t>(choice % 10);
  const auto down = static_cast<int>(choice >> 32 & 0xffff) % (2 * kMargin + 1);
  const auto across = static_cast<int>(choice >> 48) % (2 * kMargin + 1);
  for (int row = 0; row < kSide; ++row) {
    const float* ink = kCanvases[digit].data() + (row + down) * kCanvas + across;
    uint64_t noise = 0;
    for (int column = 0; column < kSide; ++column) {
      if (column % 8 == 0) noise = random();
      *points++ = ink[column] + static_cast<float>(noise & 0xff) * (kNoise / 255);
      noise >>= 8;
    }
  }
  return static_cast<int>(digit);
}

}  // namespace muster
