// Arguments of a call that show the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace muster {

// Which of several tensors share memory, and how: those whose ranges of memory overlap are a group. A program that
// writes to its arguments takes such a group as one argument, the bytes of the whole range, and what the function is
// given are views of that. So nothing that looks at the program can take them for different memory, wherever it runs.
class SharedMemory {
 public:
  SharedMemory() = default;  // nothing is shared
  explicit SharedMemory(const std::vector<at::Tensor>& tensors);

  bool empty() const { return groups_.empty(); }
  void append_to(std::vector<int64_t>& words) const;

  // The tensors with each group as one, in the place of its first member. Throws Error{kInvalidArgument} for elements
  // of different types that overlap so that no view could show them.
  std::vector<at::Tensor> merged(const std::vector<at::Tensor>& tensors) const;
  // The way back, by ops on what merged() gave, or on what stands for it. `like` are the tensors of the call.
  std::vector<at::Tensor> apart(const std::vector<at::Tensor>& merged, const std::vector<at::Tensor>& like) const;

 private:
  struct Member {
    size_t number;       // of the tensor
    int64_t first_byte;  // of its elements, from the group's first
    size_t same_as;      // the first tensor of the call that is this very tensor: autograd knows them as one
  };
  struct Group {
    std::vector<Member> members;  // in the order of the tensors
    int64_t bytes;
  };
  std::vector<Group> groups_;  // by their first members
};

}  // namespace muster
