// Takes datasets apart, for the tests of this folder. Not part of the library.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/base/test_errors.h"
#include "muster/data/dataset.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::testing_support {

using Numbers = std::vector<int64_t>;

inline Numbers numbers_in(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kLong).contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// What is left of the sequence, at most `most` elements.
inline std::vector<Element> rest_of(ElementSource& source, size_t most = 10'000) {
  std::vector<Element> elements;
  while (elements.size() < most) {
    std::optional<Element> element = source.next();
    if (!element) break;
    elements.push_back(std::move(*element));
  }
  return elements;
}

inline std::vector<Element> elements_of(const Dataset& dataset, size_t most = 10'000) {
  return rest_of(*dataset.open(local_worker()), most);
}

// Of the first tensors of the elements, one after the other.
inline Numbers numbers_of(const std::vector<Element>& elements) {
  Numbers all;
  for (const Element& element : elements) {
    for (const int64_t number : numbers_in(element[0])) all.push_back(number);
  }
  return all;
}
inline Numbers numbers_of(const Dataset& dataset, size_t most = 10'000) {
  return numbers_of(elements_of(dataset, most));
}

// Counts up to `end`, which a stranger could not.
inline Dataset counting_generator(int64_t end) {
  return Dataset::generator([end] {
    return [end, next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == end) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });
}

}  // namespace muster::testing_support
