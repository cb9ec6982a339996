// Tables of vectors, one for each word, user or product.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/trace/initial_value.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/rows.h"
#include "muster/trace/variable.h"

namespace torch::nn {
template <class Derived>
class Cloneable;
template <class Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace muster {

enum class Combiner { kSum, kMean, kSqrtn };

struct LookupOptions {
  // Without one the result has a row for each id: ids.sizes() + {dim}. With one the last dimension of `ids` is a bag,
  // whose rows become one: their sum, divided by the sum of the weights (mean) or the root of the sum of their squares
  // (sqrtn). An empty bag gives zeros.
  std::optional<Combiner> combiner{};
  // Of the ids of bags, of the shape of `ids`; else 1 for each. For mean and sqrtn an id whose weight is not positive
  // counts as padding; a sum takes every weight as it is. (So does TensorFlow's safe_embedding_lookup_sparse.)
  at::Tensor weights{};
};

// Rows of a table, which is a variable of two dimensions: whole or in parts, here or on parameter servers. Ids are
// int64; one below 0 is padding: it gives zeros, has no gradient and does not count in a bag. One that is too large is
// Error{kOutOfRange} when the function runs. Differentiable: see gradients_by_rows() and Optimizer.
at::Tensor embedding_lookup(const Variable& table, const at::Tensor& ids, const LookupOptions& options = {});

namespace nn {

struct EmbeddingOptions {
  int64_t rows;
  int64_t dim;
  std::string name = "embedding";
  double deviation = 0.05;  // of the initial values, which are normal and drawn where the table lives
  // With the same seed, tables of one shape begin with the same values. Without one, each begins with others, which
  // torch::manual_seed makes the same again.
  std::optional<uint64_t> seed{};
  // Rows are drawn when they are first trained and take no memory before, nor does what an optimizer keeps for them:
  // see InitialValue::on_demand(). For tables larger than the memory of the parameter servers.
  bool on_demand = false;
};

// The table of such options, named and placed as any variable: in the scope of a strategy it lives where that says.
Variable make_table(const EmbeddingOptions& options);

// A table with its lookup, as a torch::nn module: forward(ids) gives a row for each. A template, so that this header
// does without torch::nn; who uses it has included <torch/torch.h>.
template <class Unused>
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl<Unused>> {
 public:
  explicit EmbeddingImpl(EmbeddingOptions options) : options_(std::move(options)), table_(make_table(options_)) {
    EmbeddingImpl::reset();
  }
  // Under the name that it has in torch::nn::Embedding, so that files of weights go from one to the other.
  void reset() override { this->register_parameter("weight", shown_parameter(table_), table_.trainable()); }

  at::Tensor forward(const at::Tensor& ids) { return embedding_lookup(table_, ids); }
  // With a combiner: one row for each bag of ids.
  at::Tensor forward_bags(const at::Tensor& ids, const LookupOptions& options) {
    return embedding_lookup(table_, ids, options);
  }
  const Variable& table() const { return table_; }

 private:
  EmbeddingOptions options_;
  Variable table_;
};

template <class Unused>
class BasicEmbedding : public torch::nn::ModuleHolder<EmbeddingImpl<Unused>> {
 public:
  using Base = torch::nn::ModuleHolder<EmbeddingImpl<Unused>>;
  BasicEmbedding(std::nullptr_t) : Base(nullptr) {}  // NOLINT: this and the next as TORCH_MODULE has them
  BasicEmbedding(std::shared_ptr<EmbeddingImpl<Unused>> module) : Base(std::move(module)) {}  // NOLINT
  explicit BasicEmbedding(EmbeddingOptions options)
      : Base(std::make_shared<EmbeddingImpl<Unused>>(std::move(options))) {}

  at::Tensor operator()(const at::Tensor& ids, const LookupOptions& options = {}) const {
    return embedding_lookup(table(), ids, options);
  }
  const Variable& table() const { return (*this)->table(); }
};

// register_module("users", muster::nn::Embedding({.rows = 1'000'000, .dim = 16})), or one of the layers of a
// torch::nn::Sequential.
using Embedding = BasicEmbedding<void>;

}  // namespace nn
}  // namespace muster
