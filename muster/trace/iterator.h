#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/trace/tracer/leaves.h"

namespace muster {

class ElementSource;

// Who shares each element of a sequence, by rows.
enum class SharedBy {
  kNobody,        // each replica takes one of its own
  kAllReplicas,   // of a step
  kReplicasHere,  // those of this process; others take theirs from sequences of their own
};

// The tensors of an element by the names of their columns.
class Features {
 public:
  Features(std::vector<std::string> names, std::vector<at::Tensor> tensors)
      : names_(std::move(names)), tensors_(std::move(tensors)) {}

  // Throws Error{kInvalidArgument} that lists the names there are.
  const at::Tensor& operator[](std::string_view name) const&;
  at::Tensor operator[](std::string_view name) && { return std::as_const(*this)[name]; }
  bool contains(std::string_view name) const;
  const std::vector<std::string>& names() const& { return names_; }
  const std::vector<at::Tensor>& tensors() const& { return tensors_; }  // in the order of the columns
  // Of what a call has just returned: `for (const at::Tensor& output : model.predict_all(data).tensors())`.
  std::vector<std::string> names() && { return std::move(names_); }
  std::vector<at::Tensor> tensors() && { return std::move(tensors_); }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
};

// A sequence of examples, as an argument of a traced function: every run of `next()` takes the next element. The
// sequence itself is at the worker that runs the function, under a number; the same function runs with any sequence
// whose elements look alike. For an element of another shape, such as a last, smaller batch, the function is traced
// once more. Limit: not if it is taken by a loop or a branch, or after one that takes elements; that is an error.
//   auto step = muster::function([&](muster::Iterator& it) { auto [x, y] = it.next(); … });
struct Iterator {
  at::Tensor number{};           // int64, one element
  std::vector<int64_t> specs{};  // of the first element: numbers_of(…), see graph/elements.h
  KeptAlive source{};            // closed with the last copy, if it belongs to this process
  SharedBy shared_by = SharedBy::kNobody;
  std::vector<std::string> names{};  // of the tensors, if they have some
  int64_t labels = 0;                // so many of them, the last ones, are what the others are to predict

  // Inside a traced function the element has N tensors. Throws Error{kOutOfRange} at the end of the sequence.
  template <size_t N = 2>
  std::array<at::Tensor, N> next() {
    std::vector<at::Tensor> element = next_tensors(N);
    std::array<at::Tensor, N> tensors;
    for (size_t i = 0; i < N; ++i) tensors[i] = std::move(element[i]);
    return tensors;
  }

  // By name, for a dataset whose columns have names:
  //   auto [features, label] = it.next_labelled(); … features["user"]
  // The label is the column that Dataset::label has named. Throws Error{kInvalidArgument} if there is not one.
  Features next_features();
  std::pair<Features, at::Tensor> next_labelled();

  // Where the next element is, as text: Dataset::from goes on there. Of a sequence of this process; else
  // Error{kNotFound}.
  std::string position() const;

  // Back to the beginning, as repeat() does it. False: its sequence cannot, or is not of this process.
  bool begin_again() const;

  std::string described() const;  // for messages: 'a sequence of ("x" float32[5, 4], "y" int64[5])'

  // Error{kInvalidArgument} if an element has not `count` tensors.
  std::vector<at::Tensor> next_tensors(size_t count);

 private:
  std::vector<at::Tensor> take(size_t count) const;
};

// Begins a sequence of this process, whose elements look as the pattern says.
Iterator iterator_over(std::shared_ptr<ElementSource> source, Iterator pattern);

// Which rows of a batch a replica gets. Nine rows for four replicas:
enum class Deal {
  kEvenly,         // 3, 2, 2, 2
  kFirstOnesFull,  // 3, 3, 3, 0
};
struct RowsOfReplica {
  int64_t first = 0, count = 0;
};
RowsOfReplica rows_of_replica(int64_t rows, int64_t replica, int64_t replicas, Deal deal = Deal::kEvenly);

}  // namespace muster
