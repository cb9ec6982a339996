// Tensors as the messages of a sum: what has one type after each other, and cut into pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace muster {

// Tensors of one type, after each other in memory.
struct Pack {
  std::vector<size_t> members{};  // numbers of the values
  at::Tensor flat{};
};

std::vector<Pack> packed(const std::vector<at::Tensor>& values);
// Into tensors that look like `values`, where those are.
void unpack(const Pack& pack, const at::Tensor& flat, const std::vector<at::Tensor>& values,
            std::vector<at::Tensor>& results);
// All of them; `flats` by pack.
std::vector<at::Tensor> unpacked(const std::vector<Pack>& packs, const std::vector<at::Tensor>& flats,
                                 const std::vector<at::Tensor>& values);
int64_t bytes_of(const std::vector<Pack>& packs);

// The first message of a call says what it is; these come after it. Two numbers for each part: what others are to sum
// for all, and what was summed.
inline int64_t part_to_sum(int64_t part) { return 1 + 2 * part; }
inline int64_t part_summed(int64_t part) { return 2 + 2 * part; }

// While one part is summed the next ones travel, and the sums of those before come back. Between processes of one
// machine all of them lie in memory that both see.
extern const int64_t kChunkBytes;
inline constexpr size_t kPartsAhead = 4, kPartsBehind = 2;

// What there is of so many elements.
at::Tensor slice_of(const at::Tensor& flat, int64_t first, int64_t count);

// So many elements of a pack that each of those who sum up has one piece of them.
struct Part {
  size_t pack;
  int64_t number, first, piece, end;
  std::vector<size_t> to_sum{}, summed{};  // questions, by rank

  // So many of its pieces, after each other. The last ones may have fewer elements, or none.
  at::Tensor pieces(const std::vector<at::Tensor>& flats, int64_t from, int64_t count) const {
    const int64_t begin = std::min(first + from * piece, end);
    return flats[pack].narrow(0, begin, std::min(count * piece, end - begin));
  }
};

// A sum has come that belongs at `place`. It may be there already: the question for it has named that memory.
void put_in_place(const at::Tensor& sum, at::Tensor place);

// Each of so many pieces, none of which has more than so many bytes.
std::vector<Part> cut(const std::vector<at::Tensor>& flats, int pieces, int64_t most_bytes);

}  // namespace muster
