#include "muster/trace/tracer/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
  size_t number;
};

std::optional<Range> range_of(const at::Tensor& tensor, size_t number) {
  if (!tensor.has_storage() || tensor.numel() == 0) return std::nullopt;
  int64_t elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) elements += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return Range{begin, begin + static_cast<uintptr_t>(elements) * tensor.itemsize(), number};
}

}  // namespace

SharedMemory::SharedMemory(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() < 2) return;
  std::vector<Range> ranges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (auto range = range_of(tensors[i], i)) ranges.push_back(*range);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t first = 0, next; first < ranges.size(); first = next) {
    uintptr_t end = ranges[first].end;
    for (next = first + 1; next < ranges.size() && ranges[next].begin < end; ++next)
      end = std::max(end, ranges[next].end);
    if (next == first + 1) continue;
    Group& group = groups_.emplace_back(Group{{}, static_cast<int64_t>(end - ranges[first].begin)});
    for (size_t i = first; i < next; ++i) {
      group.members.push_back({ranges[i].number, static_cast<int64_t>(ranges[i].begin - ranges[first].begin), 0});
    }
    std::sort(group.members.begin(), group.members.end(),
              [](const Member& a, const Member& b) { return a.number < b.number; });
    for (Member& member : group.members) {
      member.same_as = std::find_if(group.members.begin(), group.members.end(), [&](const Member& other) {
                         return tensors[other.number].is_same(tensors[member.number]);
                       })->number;
    }
  }
  std::sort(groups_.begin(), groups_.end(),
            [](const Group& a, const Group& b) { return a.members[0].number < b.members[0].number; });
}

void SharedMemory::append_to(std::vector<int64_t>& words) const {
  for (const Group& group : groups_) {
    words.push_back(static_cast<int64_t>(group.members.size()));
    words.push_back(group.bytes);
    for (const Member& member : group.members) {
      words.push_back(static_cast<int64_t>(member.number));
      words.push_back(member.first_byte);
      words.push_back(static_cast<int64_t>(member.same_as));
    }
  }
}

std::vector<at::Tensor> SharedMemory::merged(const std::vector<at::Tensor>& tensors) const {
  PlainTensors plain;
  std::vector<at::Tensor> merged = tensors;
  for (const Group& group : groups_) {
    std::vector<at::Tensor> kept;
    std::byte* first = nullptr;
    for (const Member& member : group.members) {
      at::Tensor& tensor = merged[member.number];
      if (member.first_byte % static_cast<int64_t>(tensor.itemsize()) != 0) {
        throw invalid_argument(
            "argument tensors ", group.members[0].number, " (", spec_of(tensors[group.members[0].number]).to_string(),
            ") and ", member.number, " (", spec_of(tensor).to_string(),
            ") of a function that writes to its arguments share memory, and the elements of one begin "
            "within elements of the other; pass a copy of one of them");
      }
      first = static_cast<std::byte*>(tensor.mutable_data_ptr()) - member.first_byte;
      kept.push_back(std::exchange(tensor, at::Tensor()));
    }
    const at::Device device = kept[0].device();
    merged[group.members[0].number] =
        at::from_blob(first, {group.bytes}, [kept](void*) {}, at::TensorOptions(at::kByte).device(device), device);
  }
  std::erase_if(merged, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return merged;
}

std::vector<at::Tensor> SharedMemory::apart(const std::vector<at::Tensor>& merged,
                                            const std::vector<at::Tensor>& like) const {
  std::vector<const Group*> group_of(like.size(), nullptr);
  for (const Group& group : groups_) {
    for (const Member& member : group.members) group_of[member.number] = &group;
  }
  std::vector<at::Tensor> tensors(like.size());
  size_t next = 0;
  for (size_t i = 0; i < like.size(); ++i) {
    if (group_of[i] == nullptr) {
      tensors[i] = merged[next++];
    } else if (group_of[i]->members[0].number == i) {
      const at::Tensor& memory = merged[next++];
      for (const Member& member : group_of[i]->members) {
        const at::Tensor& original = like[member.number];
        if (member.same_as != member.number) {
          tensors[member.number] = tensors[member.same_as];
          continue;
        }
        const auto size = static_cast<int64_t>(original.itemsize());
        const at::Tensor elements = memory.narrow(0, 0, group_of[i]->bytes / size * size).view(original.scalar_type());
        tensors[member.number] =
            elements.as_strided(original.sizes(), original.strides(), member.first_byte / size).detach();
        if (original.requires_grad()) tensors[member.number].requires_grad_();
      }
    }
  }
  return tensors;
}

}  // namespace muster
