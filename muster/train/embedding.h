// Tables of vectors, one for each word, user or product.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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
class Module;
template <class Derived>
class Cloneable;
template <class Contained>
class ModuleHolder;
}  // namespace torch::nn
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace muster {

class VariableCreator;

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
// The same in a plain tensor, also outside of traced functions; its gradient is of the whole table.
at::Tensor embedding_lookup(const at::Tensor& table, const at::Tensor& ids, const LookupOptions& options = {});

namespace nn {

struct EmbeddingOptions {
  int64_t rows;
  int64_t dim;
  // Without one, the table is called as the module that it is a part of calls it, "users.weight", and "embedding" if it
  // is used before that is adopted, or is adopted by itself.
  std::string name{};
  double deviation = 0.05;  // of the initial values, which are normal and drawn where the table lives
  // With the same seed, tables of one shape begin with the same values. Without one, each begins with others, which
  // torch::manual_seed makes the same again.
  std::optional<uint64_t> seed{};
  // Rows are drawn when they are first trained and take no memory before, nor does what an optimizer keeps for them:
  // see InitialValue::on_demand(). For tables larger than the memory of the parameter servers.
  bool on_demand = false;
};

// Throws Error{kInvalidArgument} for sizes of no table and for a deviation that is none.
EmbeddingOptions checked(EmbeddingOptions options);
// What a table is called that is no part of a module.
std::string name_alone(const EmbeddingOptions& options);

// A table that will be a variable, made when its name is known. What it begins with, and where it lives, are of the
// moment when the module was made.
struct LaterTable {
  InitialValue values;
  std::shared_ptr<VariableCreator> creator;  // null: none
  std::string device;
};
// Where a new table is never a plain tensor: for rows on demand, and in the scope of a strategy, which says where it
// lives, so that this machine needs no memory for it. Else nothing. Throws Error{kFailedPrecondition} in a trace.
std::optional<LaterTable> later_table(const EmbeddingOptions& options);
// What the parameter is until then: for one that comes later without memory, else the values that it begins with.
at::Tensor new_weight(const EmbeddingOptions& options, const std::optional<LaterTable>& later);
// The variable of a table, whose parameter gives up its memory. For one that comes later throws
// Error{kFailedPrecondition} in a trace.
Variable make_table(at::Tensor weight, const EmbeddingOptions& options, const std::optional<LaterTable>& later,
                    const AdoptOptions& adopt);
// In a traced function as the table says; outside of one in the value that it has at the moment, as a whole, since a
// module that was trained can be called like any other. Rows on demand are looked up in functions alone.
at::Tensor lookup_of_now(const Variable& table, const at::Tensor& ids, const LookupOptions& options);
// Throws Error{kInvalidArgument} if they have not the sizes of the options.
at::Tensor checked_values(const EmbeddingOptions& options, at::Tensor values);
// Throws Error{kFailedPrecondition} if that is not the type of the table: a variable keeps the one that it has.
void expect_type_of(const at::Tensor& weight, const std::string& name, at::ScalarType type);

// A table with its lookup, as a torch::nn module: forward(ids) gives a row for each. Its parameter is "weight", as that
// of torch::nn::Embedding, so that files of weights go from one to the other. It is a plain tensor until the module is
// adopted, by itself or as a part of another one, and then a variable of the strategy in whose scope this is. Where the
// module is made in such a scope, or has rows on demand, it never is one: it becomes a variable of that strategy at
// once if it has a name, else when it is adopted or first used.
// A clone is a module that nobody has adopted. It has the values of now, and so has what torch::save writes.
// Limit: both have all rows, also of a table whose rows are made on demand.
// A template, so that this header does without torch::nn; who uses it has included <torch/torch.h>.
template <class Unused>
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl<Unused>>, public MakesVariables {
 public:
  using Base = torch::nn::Cloneable<EmbeddingImpl<Unused>>;

  explicit EmbeddingImpl(EmbeddingOptions options) : options_(checked(std::move(options))) { EmbeddingImpl::reset(); }
  // Begins with these values, [rows, dim].
  EmbeddingImpl(EmbeddingOptions options, at::Tensor values) : options_(checked(std::move(options))) {
    this->register_parameter("weight", checked_values(options_, std::move(values)));
  }
  void reset() override {
    later_ = later_table(options_);
    this->register_parameter("weight", new_weight(options_, later_));
    if (later_ && !options_.name.empty()) EmbeddingImpl::make_variables({});
  }

  at::Tensor forward(const at::Tensor& ids) { return forward_bags(ids, {}); }
  // With a combiner: one row for each bag of ids.
  at::Tensor forward_bags(const at::Tensor& ids, const LookupOptions& options) const {
    return is_variable() ? lookup_of_now(table(), ids, options) : embedding_lookup(weight(), ids, options);
  }
  // Makes it a variable if it is none yet.
  const Variable& table() const {
    EmbeddingImpl::make_variables({});
    return *table_;
  }
  void make_variables(const AdoptOptions& options) const override {
    if (table_) return;
    table_ = make_table(weight(), options_, later_, options);
    later_.reset();
  }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const override {
    at::Tensor copied = values().clone();
    if (device) copied = copied.to(at::TensorOptions(*device));
    auto copy = std::make_shared<EmbeddingImpl>(options_, std::move(copied));
    copy->train(this->is_training());
    return copy;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (!is_variable()) return Base::save(archive);
    EmbeddingImpl(options_, values()).save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    EmbeddingImpl loaded(options_, weight().detach());
    loaded.Base::load(archive);
    const at::Tensor values = checked_values(options_, loaded.values());  // before this one is changed
    if (!is_variable()) return Base::load(archive);
    Variable(table()).assign(values);
  }
  void to(c10::Device device, at::ScalarType type, bool non_blocking = false) override {
    if (!is_variable()) return Base::to(device, type, non_blocking);
    expect_type_of(weight(), table_name(), type);
  }
  void to(at::ScalarType type, bool non_blocking = false) override {
    if (!is_variable()) return Base::to(type, non_blocking);
    expect_type_of(weight(), table_name(), type);
  }
  void to(c10::Device device, bool non_blocking = false) override {
    if (!is_variable()) Base::to(device, non_blocking);  // a variable lives where the strategy says
  }

 private:
  const at::Tensor& weight() const { return this->parameters_["weight"]; }
  at::Tensor values() const { return (is_variable() ? table().value() : weight()).detach(); }
  bool is_variable() const { return table_ || later_; }
  std::string table_name() const { return table_ ? table_->name() : name_alone(options_); }

  EmbeddingOptions options_;
  mutable std::optional<Variable> table_;
  mutable std::optional<LaterTable> later_;
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
    return this->get()->forward_bags(ids, options);
  }
  const Variable& table() const { return (*this)->table(); }
};

// register_module("users", muster::nn::Embedding({.rows = 1'000'000, .dim = 16})), or one of the layers of a
// torch::nn::Sequential.
using Embedding = BasicEmbedding<void>;

}  // namespace nn
}  // namespace muster
