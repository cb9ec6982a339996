// Tables of vectors, one for each word, user or product.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "muster/trace/initial_value.h"
#include "muster/trace/rows.h"
#include "muster/trace/variable.h"

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

// A table with its lookup. Made in the scope of a strategy, it lives where the strategy says.
class Embedding {
 public:
  explicit Embedding(EmbeddingOptions options);

  at::Tensor operator()(const at::Tensor& ids, const LookupOptions& options = {}) const {
    return embedding_lookup(table_, ids, options);
  }
  const Variable& table() const { return table_; }

 private:
  Variable table_;
};

}  // namespace nn
}  // namespace muster
