#include "muster/train/embedding.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/tracer/trace.h"
#include "muster/trace/variable_scope.h"
#include "muster/train/expect_option.h"

namespace muster {
namespace {

std::string described_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? spec_of(tensor).to_string() : "undefined";
}

at::Tensor rows_of(const Variable& table, const at::Tensor& ids) { return lookup(table, ids); }

at::Tensor rows_of(const at::Tensor& table, const at::Tensor& ids) {
  if (ids.scalar_type() != at::kLong) {
    throw invalid_argument("embedding_lookup: the ids are ", spec_of(ids).to_string(), ", expected int64");
  }
  // In a trace nobody knows the ids of later calls; there the op itself refuses those that are too large.
  if (!tracing() && ids.numel() > 0) {
    const auto largest = ids.max().item<int64_t>();
    if (largest >= table.size(0)) {
      throw out_of_range("embedding_lookup: id ", largest, " of a table with ", table.size(0), " rows");
    }
  }
  const at::Tensor flat = ids.reshape({-1});
  const at::Tensor rows =
      at::index_select(table, 0, flat.clamp_min(0)).masked_fill(flat.lt(0).unsqueeze(-1), 0);  // padding is zeros
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(table.size(1));
  return rows.reshape(sizes);
}

// `table` is a variable or a tensor, of two dimensions.
template <class Table>
at::Tensor looked_up(const Table& table, const at::Tensor& ids, const LookupOptions& options) {
  if (!ids.defined()) throw invalid_argument("embedding_lookup: the ids are undefined, expected int64");
  if (!options.combiner) {
    if (options.weights.defined()) throw invalid_argument("embedding_lookup: weights need a combiner");
    return rows_of(table, ids);
  }
  if (ids.dim() == 0) throw invalid_argument("embedding_lookup: a combiner needs bags, got a single id");
  const at::Tensor& given = options.weights;
  if (given.defined() && given.sizes() != ids.sizes()) {
    throw invalid_argument("embedding_lookup: weights are ", spec_of(given).to_string(), " for ids ",
                           spec_of(ids).to_string());
  }
  at::Tensor counted = ids;
  if (given.defined() && *options.combiner != Combiner::kSum) {
    counted = ids.masked_fill(given.detach().gt(0).logical_not(), -1);  // a weight that is no number is not positive
  }
  const at::Tensor rows = rows_of(table, counted);
  at::Tensor weights = counted.ge(0).to(rows.scalar_type());
  if (given.defined()) weights = given.to(rows.scalar_type()).masked_fill(counted.lt(0), 0);
  const at::Tensor sum = rows.mul(weights.unsqueeze(-1)).sum(-2);
  // What the sum is divided by; 1 for an empty bag, whose sum is zero.
  auto of_bags = [](const at::Tensor& total) { return total.masked_fill(total.detach().eq(0), 1); };
  switch (*options.combiner) {
    case Combiner::kSum: return sum;
    case Combiner::kMean: return sum.div(of_bags(weights.sum(-1, /*keepdim=*/true)));
    case Combiner::kSqrtn: return sum.div(of_bags(weights.square().sum(-1, /*keepdim=*/true)).sqrt());
  }
  return sum;
}

}  // namespace

at::Tensor embedding_lookup(const Variable& table, const at::Tensor& ids, const LookupOptions& options) {
  if (table.sizes().size() != 2) {
    throw invalid_argument("embedding_lookup: table \"", table.name(), "\" is ", table.state()->spec.to_string(),
                           ", expected two dimensions");
  }
  return looked_up(table, ids, options);
}

at::Tensor embedding_lookup(const at::Tensor& table, const at::Tensor& ids, const LookupOptions& options) {
  if (!table.defined() || table.dim() != 2) {
    throw invalid_argument("embedding_lookup: the table is ", described_tensor(table), ", expected two dimensions");
  }
  return looked_up(table, ids, options);
}

namespace nn {
namespace {

InitialValue drawn(const EmbeddingOptions& options) {
  return InitialValue::normal({options.rows, options.dim}, 0.0, options.deviation, options.seed);
}

std::string name_within(const EmbeddingOptions& options, const std::string& module) {
  return options.name.empty() && !module.empty() ? str_cat(module, ".weight") : name_alone(options);
}

}  // namespace

EmbeddingOptions checked(EmbeddingOptions options) {
  const std::string whose = options.name.empty() ? "Embedding" : str_cat("Embedding \"", options.name, "\"");
  expect_option(options.rows >= 1, whose, "rows", options.rows, "1 or more");
  expect_option(options.dim >= 1, whose, "dim", options.dim, "1 or more");
  constexpr int64_t kMostNumbers = std::numeric_limits<int64_t>::max() / int64_t{sizeof(float)};
  expect_option(options.rows <= kMostNumbers / options.dim, whose, "rows", options.rows,
                str_cat("at most ", kMostNumbers / options.dim, " of ", options.dim, " numbers each"));
  expect_option(std::isfinite(options.deviation) && options.deviation >= 0, whose, "deviation", options.deviation,
                "a number of 0 or more");
  return options;
}

std::string name_alone(const EmbeddingOptions& options) { return options.name.empty() ? "embedding" : options.name; }

std::optional<LaterTable> later_table(const EmbeddingOptions& options) {
  if (tracing()) {
    throw failed_precondition("Embedding \"", name_alone(options),
                              "\" is made inside a traced function, which would make it again with every trace; make "
                              "it outside and use it inside");
  }
  const std::shared_ptr<VariableCreator>& creator = VariableScope::current();
  if (!options.on_demand && creator == nullptr) return std::nullopt;
  const InitialValue values = drawn(options);
  return LaterTable{options.on_demand ? values.on_demand() : values, creator, DeviceScope::current()};
}

at::Tensor new_weight(const EmbeddingOptions& options, const std::optional<LaterTable>& later) {
  if (later) return at::zeros({1}, at::kFloat).expand({options.rows, options.dim});
  try {
    return drawn(options).tensor();
  } catch (const Error& error) {
    const bool needs_less_by_rows = error.code() == StatusCode::kResourceExhausted;
    throw Error(Status(
        error.code(),
        str_cat("Embedding \"", name_alone(options), "\": ", error.status().message(),
                needs_less_by_rows ? "; with EmbeddingOptions::on_demand a row takes memory when it is first trained"
                                   : "")));
  }
}

Variable make_table(at::Tensor weight, const EmbeddingOptions& options, const std::optional<LaterTable>& later,
                    const AdoptOptions& adopt) {
  VariableOptions variable{
      .name = name_within(options, adopt.prefix), .trainable = weight.requires_grad(), .device = adopt.device};
  const auto made = [&] {
    if (!later) return Variable(weight, std::move(variable));
    if (tracing()) {
      throw failed_precondition("table \"", variable.name, "\" (", spec_of(weight).to_string(),
                                ") is used in a traced function before there is a variable for it; adopt the module, "
                                "or call table(), outside of the function first");
    }
    // Where the module was made, and not in the scope where this is called, whose strategy may be another one.
    const DeviceScope there(later->device);
    const VariableScope outside(nullptr);
    const VariableScope as_then(later->creator);
    return Variable(later->values, std::move(variable));
  };
  Variable table = made();
  shown_parameter(table, std::move(weight));
  return table;
}

at::Tensor lookup_of_now(const Variable& table, const at::Tensor& ids, const LookupOptions& options) {
  if (tracing() || table.state()->on_demand) return embedding_lookup(table, ids, options);
  return embedding_lookup(table.value(), ids, options);
}

at::Tensor checked_values(const EmbeddingOptions& options, at::Tensor values) {
  const bool fits = values.defined() && values.sizes() == at::IntArrayRef({options.rows, options.dim});
  if (fits && values.is_floating_point()) return values;
  throw invalid_argument("table \"", name_alone(options), "\": the values are ", described_tensor(values),
                         ", expected [", options.rows, ", ", options.dim, "] of floating-point numbers");
}

void expect_type_of(const at::Tensor& weight, const std::string& name, at::ScalarType type) {
  if (weight.scalar_type() == type) return;
  throw failed_precondition("variable \"", name, "\" is ", spec_of(weight).to_string(), " and cannot become ",
                            name_of(dtype_of(type)),
                            "; convert a module before it is adopted, outside of the scope of a strategy");
}

}  // namespace nn
}  // namespace muster
