#include "muster/runtime/ops/float_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

// Whoever has no OpenMP has libtorch's threads only through libtorch.
#if defined(__aarch64__) && defined(_OPENMP)
#define MUSTER_MULTIPLIES 1
#include <arm_neon.h>
#endif

namespace muster {
namespace {

bool in_lines(const FloatMatrix& matrix) { return matrix.column_stride == 1 || matrix.row_stride == 1; }

bool are_matrices(const FloatMatrix& a, const FloatMatrix& b) {
  constexpr int64_t kLeast = 4;  // below, it is hardly a matrix, and libtorch has other ways for those
  return a.rows >= kLeast && a.columns >= kLeast && b.columns >= kLeast && in_lines(a) && in_lines(b);
}

}  // namespace

#if defined(MUSTER_MULTIPLIES)
namespace {

constexpr int64_t kLanes = 4;  // floats of a register
// 24 of the 32 registers hold the sums of a tile, the others what is multiplied next.
constexpr int64_t kTileRows = 8, kTileColumns = 12;

// The tile whose rows are `stride` apart becomes alpha times the sum of the products of column k of a with row k of b,
// or that is added to it. a is packed as [inner][kTileRows], b as [inner][kTileColumns]. REQUIRES: inner > 0.
// Written out because compilers keep some of the sums in memory, which halves the speed.
void multiply_tile(const float* a, const float* b, int64_t inner, float* tile, int64_t stride, float alpha, bool add) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  int64_t left = inner;
  float* row = tile;
  const int64_t adds = add ? 1 : 0;
#define MUSTER_ZERO(x) "movi v" #x ".4s, #0\n"
#define MUSTER_ROW(a, c0, c1, c2) \
  "fmla v" #c0 ".4s, v2.4s, " a "\n fmla v" #c1 ".4s, v3.4s, " a "\n fmla v" #c2 ".4s, v4.4s, " a "\n"
#define MUSTER_STORE(c0, c1, c2)                                     \
  "fmul v" #c0 ".4s, v" #c0 ".4s, v0.s[0]\n fmul v" #c1 ".4s, v" #c1 \
  ".4s, v0.s[0]\n"                                                   \
  "fmul v" #c2 ".4s, v" #c2                                          \
  ".4s, v0.s[0]\n"                                                   \
  "stp q" #c0 ", q" #c1 ", [%[row]]\n str q" #c2 ", [%[row], #32]\n add %[row], %[row], %[bytes]\n"
#define MUSTER_ADD(c0, c1, c2)                                                              \
  "ldp q1, q2, [%[row]]\n ldr q3, [%[row], #32]\n"                                          \
  "fmla v1.4s, v" #c0 ".4s, v0.s[0]\n fmla v2.4s, v" #c1 ".4s, v0.s[0]\n fmla v3.4s, v" #c2 \
  ".4s, v0.s[0]\n"                                                                          \
  "stp q1, q2, [%[row]]\n str q3, [%[row], #32]\n add %[row], %[row], %[bytes]\n"
  asm volatile(
      // clang-format off
      MUSTER_ZERO(8) MUSTER_ZERO(9) MUSTER_ZERO(10) MUSTER_ZERO(11) MUSTER_ZERO(12) MUSTER_ZERO(13)
      MUSTER_ZERO(14) MUSTER_ZERO(15) MUSTER_ZERO(16) MUSTER_ZERO(17) MUSTER_ZERO(18) MUSTER_ZERO(19)
      MUSTER_ZERO(20) MUSTER_ZERO(21) MUSTER_ZERO(22) MUSTER_ZERO(23) MUSTER_ZERO(24) MUSTER_ZERO(25)
      MUSTER_ZERO(26) MUSTER_ZERO(27) MUSTER_ZERO(28) MUSTER_ZERO(29) MUSTER_ZERO(30) MUSTER_ZERO(31)
      "1:\n"
      "ldp q0, q1, [%[a]], #32\n"
      "ldp q2, q3, [%[b]]\n"
      "ldr q4, [%[b], #32]\n"
      "add %[b], %[b], #48\n"
      MUSTER_ROW("v0.s[0]", 8, 9, 10) MUSTER_ROW("v0.s[1]", 11, 12, 13)
      MUSTER_ROW("v0.s[2]", 14, 15, 16) MUSTER_ROW("v0.s[3]", 17, 18, 19)
      "subs %[left], %[left], #1\n"
      MUSTER_ROW("v1.s[0]", 20, 21, 22) MUSTER_ROW("v1.s[1]", 23, 24, 25)
      MUSTER_ROW("v1.s[2]", 26, 27, 28) MUSTER_ROW("v1.s[3]", 29, 30, 31)
      "b.ne 1b\n"
      "fmov s0, %w[alpha]\n"
      "cbnz %[adds], 2f\n"
      MUSTER_STORE(8, 9, 10) MUSTER_STORE(11, 12, 13) MUSTER_STORE(14, 15, 16) MUSTER_STORE(17, 18, 19)
      MUSTER_STORE(20, 21, 22) MUSTER_STORE(23, 24, 25) MUSTER_STORE(26, 27, 28) MUSTER_STORE(29, 30, 31)
      "b 3f\n"
      "2:\n"
      MUSTER_ADD(8, 9, 10) MUSTER_ADD(11, 12, 13) MUSTER_ADD(14, 15, 16) MUSTER_ADD(17, 18, 19)
      MUSTER_ADD(20, 21, 22) MUSTER_ADD(23, 24, 25) MUSTER_ADD(26, 27, 28) MUSTER_ADD(29, 30, 31)
      "3:\n"
      // clang-format on
      : [a] "+r"(a), [b] "+r"(b), [left] "+r"(left), [row] "+r"(row)
      : [bytes] "r"(bytes), [adds] "r"(adds), [alpha] "r"(alpha)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
        "v31");
#undef MUSTER_ROW
#undef MUSTER_STORE
#undef MUSTER_ADD
#undef MUSTER_ZERO
}

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

struct Output {
  float* data;
  int64_t row_stride;
  float alpha;
  bool add;

  void put(int64_t row, int64_t column, float sum, bool first) const {
    float& element = data[row * row_stride + column];
    element = add || !first ? std::fma(alpha, sum, element) : alpha * sum;
  }
};

// packed[k][i] = the element k of line i, for `lines` lines, and zeros for those that a panel of kWidth has more.
// `along` and `across` are the strides from one element to the next and from line to line; one of them is 1.
template <int64_t kWidth>
void pack(const float* from, int64_t along, int64_t across, int64_t lines, int64_t inner, float* packed) {
  if (lines < kWidth) std::memset(packed, 0, sizeof(float) * inner * kWidth);
  if (across == 1 && lines == kWidth) {
    for (int64_t k = 0; k < inner; ++k) std::memcpy(packed + k * kWidth, from + k * along, sizeof(float) * kWidth);
    return;
  }
  if (across == 1) {
    for (int64_t k = 0; k < inner; ++k) std::memcpy(packed + k * kWidth, from + k * along, sizeof(float) * lines);
    return;
  }
  for (int64_t line = 0; line < lines; line += kLanes) {
    int64_t k = 0;
    if (line + kLanes <= lines) {
      const float* at = from + line * across;
      for (; k + kLanes <= inner; k += kLanes) {
        // Four lines of four elements become four elements of four lines.
        const float32x4x2_t even = vtrnq_f32(vld1q_f32(at + k), vld1q_f32(at + 1 * across + k));
        const float32x4x2_t odd = vtrnq_f32(vld1q_f32(at + 2 * across + k), vld1q_f32(at + 3 * across + k));
        float* to = packed + k * kWidth + line;
        vst1q_f32(to, vcombine_f32(vget_low_f32(even.val[0]), vget_low_f32(odd.val[0])));
        vst1q_f32(to + kWidth, vcombine_f32(vget_low_f32(even.val[1]), vget_low_f32(odd.val[1])));
        vst1q_f32(to + 2 * kWidth, vcombine_f32(vget_high_f32(even.val[0]), vget_high_f32(odd.val[0])));
        vst1q_f32(to + 3 * kWidth, vcombine_f32(vget_high_f32(even.val[1]), vget_high_f32(odd.val[1])));
      }
    }
    for (; k < inner; ++k) {
      for (int64_t i = line; i < std::min(line + kLanes, lines); ++i) packed[k * kWidth + i] = from[i * across + k];
    }
  }
}

float* scratch(size_t elements) {
  thread_local std::vector<float> memory;
  if (memory.size() < elements) memory.resize(elements);
  return memory.data();
}

// A tile at an edge is made beside it.
void multiply_edge(const float* a, const float* b, int64_t inner, int64_t rows, int64_t columns, const Output& output,
                   int64_t row, int64_t column, bool first) {
  float tile[kTileRows * kTileColumns];
  multiply_tile(a, b, inner, tile, kTileColumns, 1, false);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) output.put(row + i, column + j, tile[i * kTileColumns + j], first);
  }
}

constexpr int64_t kMostBlockRows = 256;  // of the first factor, that a thread copies at a time

// As many blocks as there must be, of one size, so that threads have as much to do as each other.
int64_t rows_of_blocks(int64_t rows) { return tiles(rows, tiles(rows, kMostBlockRows) * kTileRows) * kTileRows; }

// Tiles of columns [begin, end) of a block of rows.
void multiply_block(const FloatMatrix& a, const FloatMatrix& b, int64_t block, int64_t block_rows, int64_t begin,
                    int64_t end, const Output& output) {
  constexpr int64_t kMostInner = 256;
  float* packed_a = scratch((kMostBlockRows + kTileColumns) * kMostInner);
  float* packed_b = packed_a + kMostBlockRows * kMostInner;
  const int64_t first_row = block * block_rows, last_row = std::min(a.rows, first_row + block_rows);
  for (int64_t k = 0; k < a.columns; k += kMostInner) {
    const int64_t inner = std::min(kMostInner, a.columns - k);
    for (int64_t row = first_row; row < last_row; row += kTileRows) {
      pack<kTileRows>(a.data + row * a.row_stride + k * a.column_stride, a.column_stride, a.row_stride,
                      std::min(kTileRows, a.rows - row), inner, packed_a + (row - first_row) * inner);
    }
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t column = tile * kTileColumns, columns = std::min(kTileColumns, b.columns - column);
      pack<kTileColumns>(b.data + k * b.row_stride + column * b.column_stride, b.row_stride, b.column_stride, columns,
                         inner, packed_b);
      for (int64_t row = first_row; row < last_row; row += kTileRows) {
        const int64_t rows = std::min(kTileRows, a.rows - row);
        const float* of_a = packed_a + (row - first_row) * inner;
        if (rows < kTileRows || columns < kTileColumns) {
          multiply_edge(of_a, packed_b, inner, rows, columns, output, row, column, k == 0);
        } else {
          multiply_tile(of_a, packed_b, inner, output.data + row * output.row_stride + column, output.row_stride,
                        output.alpha, output.add || k > 0);
        }
      }
    }
  }
}

}  // namespace

bool multiplies_floats(const FloatMatrix& a, const FloatMatrix& b) { return are_matrices(a, b); }

void multiply_floats(const FloatMatrix& a, const FloatMatrix& b, float* result, int64_t row_stride, float alpha,
                     bool add) {
  constexpr int64_t kWorthAThread = 1 << 18;  // multiplications
  const Output output{result, row_stride, alpha, add};
  const int64_t tiles_of_row = tiles(b.columns, kTileColumns), block_rows = rows_of_blocks(a.rows);
  const int64_t grain = std::max<int64_t>(kWorthAThread / (kTileColumns * block_rows * a.columns), 1);
  at::parallel_for(0, tiles(a.rows, block_rows) * tiles_of_row, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end;) {
      const int64_t block = tile / tiles_of_row, end_of_block = std::min(end, (block + 1) * tiles_of_row);
      multiply_block(a, b, block, block_rows, tile - block * tiles_of_row, end_of_block - block * tiles_of_row, output);
      tile = end_of_block;
    }
  });
}

#else
namespace {

using Floats = float __attribute__((vector_size(16)));
constexpr int64_t kTileRows = 4, kVectors = 2, kLanes = 4, kTileColumns = kVectors * kLanes;
constexpr int64_t kMostProducts = 1 << 13;  // then libtorch's wider instructions are worth the way to them
constexpr int64_t kMostInner = kMostProducts / 16;

// So many columns of `b` from `first` on, as [inner][kTileColumns], and zeros for those that are missing.
void pack(const FloatMatrix& b, int64_t first, int64_t columns, Floats* packed) {
  for (int64_t k = 0; k < b.rows; ++k) {
    float line[kTileColumns] = {};
    const float* from = b.data + k * b.row_stride + first * b.column_stride;
    for (int64_t j = 0; j < columns; ++j) line[j] = from[j * b.column_stride];
    std::memcpy(packed + k * kVectors, line, sizeof line);
  }
}

// Rows of `a` from `first` on times a packed panel, as [kTileRows][kTileColumns]; of rows that are missing, the last
// one again. Written out because compilers keep an array of sums in memory.
void multiply_tile(const FloatMatrix& a, int64_t first, const Floats* packed, float* tile) {
  const auto row = [&](int64_t i) { return a.data + std::min(first + i, a.rows - 1) * a.row_stride; };
  const float *row0 = row(0), *row1 = row(1), *row2 = row(2), *row3 = row(3);
  Floats left0{}, left1{}, left2{}, left3{}, right0{}, right1{}, right2{}, right3{};
  for (int64_t k = 0; k < a.columns; ++k) {
    const Floats left = packed[k * kVectors], right = packed[k * kVectors + 1];
    const int64_t at = k * a.column_stride;
    left0 += left * row0[at], right0 += right * row0[at];
    left1 += left * row1[at], right1 += right * row1[at];
    left2 += left * row2[at], right2 += right * row2[at];
    left3 += left * row3[at], right3 += right * row3[at];
  }
  const Floats sums[] = {left0, right0, left1, right1, left2, right2, left3, right3};
  std::memcpy(tile, sums, sizeof sums);
}

}  // namespace

bool multiplies_floats(const FloatMatrix& a, const FloatMatrix& b) {
  if (!are_matrices(a, b) || a.columns > kMostInner) return false;
  return std::max(a.rows, b.columns) <= kMostProducts && a.rows * a.columns * b.columns <= kMostProducts;
}

void multiply_floats(const FloatMatrix& a, const FloatMatrix& b, float* result, int64_t row_stride, float alpha,
                     bool add) {
  Floats packed[kMostInner * kVectors];
  for (int64_t column = 0; column < b.columns; column += kTileColumns) {
    const int64_t columns = std::min(kTileColumns, b.columns - column);
    pack(b, column, columns, packed);
    for (int64_t row = 0; row < a.rows; row += kTileRows) {
      float tile[kTileRows * kTileColumns];
      multiply_tile(a, row, packed, tile);
      for (int64_t i = 0; i < std::min(kTileRows, a.rows - row); ++i) {
        const float* line = tile + i * kTileColumns;
        float* to = result + (row + i) * row_stride + column;
        for (int64_t j = 0; j < columns; ++j) to[j] = add ? to[j] + alpha * line[j] : alpha * line[j];
      }
    }
  }
}

#endif

}  // namespace muster
