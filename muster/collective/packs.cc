#include "muster/collective/packs.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "muster/near/near_post.h"

namespace muster {

const int64_t kChunkBytes = NearPost::kMost;

// Up to a piece may be left out at the end of the memory.
static_assert((2 * (kPartsAhead + kPartsBehind + 1) + 1) * NearPost::kMost < SharedMemory::kRoom);

std::vector<Pack> packed(const std::vector<at::Tensor>& values) {
  std::vector<Pack> packs;
  std::vector<at::ScalarType> types;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto type = std::find(types.begin(), types.end(), values[i].scalar_type());
    const auto place = static_cast<size_t>(type - types.begin());
    if (type == types.end()) {
      types.push_back(values[i].scalar_type());
      packs.emplace_back();
    }
    packs[place].members.push_back(i);
  }
  for (Pack& pack : packs) {
    std::vector<at::Tensor> parts;
    for (size_t member : pack.members) parts.push_back(values[member].reshape({-1}).to(at::kCPU));
    pack.flat = parts.size() == 1 ? parts[0] : at::cat(parts);
  }
  return packs;
}

void unpack(const Pack& pack, const at::Tensor& flat, const std::vector<at::Tensor>& values,
            std::vector<at::Tensor>& results) {
  int64_t first = 0;
  for (size_t member : pack.members) {
    const at::Tensor& like = values[member];
    results[member] = flat.narrow(0, first, like.numel()).view(like.sizes()).to(like.device());
    first += like.numel();
  }
}

std::vector<at::Tensor> unpacked(const std::vector<Pack>& packs, const std::vector<at::Tensor>& flats,
                                 const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> results(values.size());
  for (size_t i = 0; i < packs.size(); ++i) unpack(packs[i], flats[i], values, results);
  return results;
}

int64_t bytes_of(const std::vector<Pack>& packs) {
  int64_t bytes = 0;
  for (const Pack& pack : packs) bytes += static_cast<int64_t>(pack.flat.nbytes());
  return bytes;
}

at::Tensor slice_of(const at::Tensor& flat, int64_t first, int64_t count) {
  const int64_t begin = std::min(first, flat.numel());
  return flat.narrow(0, begin, std::min(count, flat.numel() - begin));
}

void put_in_place(const at::Tensor& sum, at::Tensor place) {
  if (sum.const_data_ptr() != place.const_data_ptr()) place.copy_(sum);
}

std::vector<Part> cut(const std::vector<at::Tensor>& flats, int pieces, int64_t most_bytes) {
  std::vector<Part> parts;
  for (size_t pack = 0; pack < flats.size(); ++pack) {
    const int64_t count = flats[pack].numel();
    const int64_t most = std::max<int64_t>(most_bytes / static_cast<int64_t>(flats[pack].element_size()), 1);
    for (int64_t first = 0; first < count; first = parts.back().end) {
      const int64_t piece = std::min(most, (count - first + pieces - 1) / pieces);
      parts.push_back({.pack = pack,
                       .number = static_cast<int64_t>(parts.size()),
                       .first = first,
                       .piece = piece,
                       .end = std::min(count, first + piece * pieces)});
    }
  }
  return parts;
}

}  // namespace muster
