#include "muster/runtime/rows/row_ops.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/changed_rows.h"
#include "muster/runtime/rows/composed_row_ops.h"
#include "muster/runtime/rows/id_numbers.h"
#include "muster/runtime/rows/row_checks.h"
#include "muster/runtime/rows/row_table.h"

namespace muster::rows {
namespace kernels {
namespace {

constexpr int64_t kAhead = 16;                // rows that are fetched from memory before they are needed
constexpr int64_t kWorthAThread = 256 << 10;  // bytes of rows: to walk over them takes longer than to wake a thread

at::TensorOptions integers(at::ScalarType type) { return at::TensorOptions(type).device(at::kCPU); }

// Elements of one row.
int64_t row_size(const at::Tensor& rows) {
  int64_t size = 1;
  for (int64_t i = 1; i < rows.dim(); ++i) size *= rows.size(i);
  return size;
}

// Memory is read and written by pointer below, so every operand is looked at before: whoever sends a program may have
// made it of any tensors.
const int64_t* checked_rows(const char* op, const at::Tensor& ids, const at::Tensor& table) {
  const int64_t* row = ids.const_data_ptr<int64_t>();
  const int64_t count = ids.numel(), rows = table.size(0);
  bool wrong = false;
  for (int64_t i = 0; i < count; ++i) wrong |= static_cast<uint64_t>(row[i]) >= static_cast<uint64_t>(rows);
  for (int64_t i = 0; wrong && i < count; ++i) {
    if (row[i] < 0 || row[i] >= rows) throw out_of_range(op, ": row ", row[i], " of ", rows);
  }
  return row;
}

// Calls use(count), with a constant where that is one of `kUsual`: a loop over the elements of a row, or the copy of
// one, is then a few instructions.
template <int64_t... kUsual, class Use>
void with_constant(int64_t count, const Use& use) {
  const bool usual = ((count == kUsual && (use(std::integral_constant<int64_t, kUsual>()), true)) || ...);
  if (!usual) use(count);
}
template <class Use>
void with_row_bytes(size_t bytes, const Use& use) {
  with_constant<16, 32, 64, 128, 256>(static_cast<int64_t>(bytes), use);
}
template <class Use>
void with_width(int64_t elements, const Use& use) {
  with_constant<8, 16, 32>(elements, use);
}

// Calls work(first, last) for parts of so many rows, side by side if they are large.
template <class Work>
void in_parts(int64_t rows, size_t row_bytes, const Work& work) {
  const int64_t least = std::max<int64_t>(kWorthAThread / std::max<int64_t>(static_cast<int64_t>(row_bytes), 1), 1);
  at::parallel_for(0, rows, least, work);
}

// Calls work(mine) for so many uses of rows, side by side if they are large; mine(row) says whether to care for that
// row. Each is cared for by one thread, which comes by all that is to be done with it in its order: the bits are those
// of a single thread. So are all rows of a cache line, which several threads would take from each other.
template <class Work>
void by_owner(int64_t uses, int64_t row_bytes, const Work& work) {
  constexpr int64_t kLine = 64;
  const int64_t owners = std::clamp<int64_t>(uses * row_bytes / kWorthAThread, 1, at::get_num_threads());
  if (owners == 1) return work([](int64_t) { return true; });
  int shift = 0;  // of the numbers of rows, to that of what is in one line
  while (row_bytes << (shift + 1) <= kLine) ++shift;
  at::parallel_for(0, owners, 1, [&](int64_t first, int64_t last) {
    for (int64_t owner = first; owner < last; ++owner) {
      work([owner, owners, shift](int64_t row) {
        constexpr uint32_t kOdd = 0x9E3779B1;  // neighbors, and every other one, go to all of them
        const uint64_t spread = static_cast<uint32_t>(row >> shift) * kOdd;
        return static_cast<int64_t>(spread * static_cast<uint64_t>(owners) >> 32) == owner;
      });
    }
  });
}

// The part that row `id` is in.
size_t part_of(int64_t id, at::IntArrayRef starts) {
  if (starts.size() == 2) return 0;
  if (starts.size() == 3) return id < starts[1] ? 0 : 1;
  return static_cast<size_t>(std::upper_bound(starts.begin() + 1, starts.end() - 1, id) - starts.begin()) - 1;
}

at::Tensor as_tensor(const std::vector<int64_t>& ids) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(ids.size())}, integers(at::kLong));
  std::copy(ids.begin(), ids.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

}  // namespace

std::tuple<at::Tensor, std::vector<at::Tensor>> unique(const at::Tensor& given, at::IntArrayRef starts) {
  const at::Tensor ids = checked_ids("muster_rows::unique", given);
  check_starts(starts);
  if (ids.numel() > std::numeric_limits<int32_t>::max()) {
    throw invalid_argument("muster_rows::unique: ", ids.numel(), " ids at once; their places are int32");
  }
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t count = ids.numel();
  const size_t parts = starts.size() - 1;
  at::Tensor places = at::empty({count}, integers(at::kInt));
  auto* place = places.mutable_data_ptr<int32_t>();
  std::vector<std::vector<int64_t>> of_part(parts);
  for (auto& list : of_part) list.reserve(static_cast<size_t>(count) / parts + 16);
  IdNumbers numbers(count);
  std::vector<uint32_t> part(parts > 1 ? static_cast<size_t>(count) : 0);  // of each id
  for (int64_t i = 0; i < count; ++i) {
    if (id[i] < 0) {
      place[i] = -1;
      continue;
    }
    if (id[i] >= starts.back()) refuse_id(id[i], starts.back());
    const size_t in = part_of(id[i], starts);
    if (parts > 1) part[static_cast<size_t>(i)] = static_cast<uint32_t>(in);
    const auto next = static_cast<int32_t>(of_part[in].size());
    place[i] = numbers.number(id[i], next);  // among those of its part, so far
    if (place[i] == next) of_part[in].push_back(id[i] - starts[in]);
  }
  std::vector<int32_t> offset(parts, 0);
  for (size_t in = 1; in < parts; ++in) {
    offset[in] = offset[in - 1] + static_cast<int32_t>(of_part[in - 1].size());
  }
  for (int64_t i = 0; parts > 1 && i < count; ++i) {
    if (place[i] >= 0) place[i] += offset[part[static_cast<size_t>(i)]];
  }
  std::vector<at::Tensor> lists;
  for (const auto& list : of_part) lists.push_back(as_tensor(list));
  return {std::move(places), std::move(lists)};
}

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> route(const at::Tensor& given, at::IntArrayRef starts) {
  const at::Tensor ids = checked_ids("muster_rows::route", given);
  check_starts(starts);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> of_part(starts.size() - 1), positions(starts.size() - 1);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] < 0 || id[i] >= starts.back()) refuse_id(id[i], starts.back());
    const size_t part = part_of(id[i], starts);
    of_part[part].push_back(id[i] - starts[part]);
    positions[part].push_back(i);
  }
  std::vector<at::Tensor> lists, from;
  for (const auto& list : of_part) lists.push_back(as_tensor(list));
  for (const auto& list : positions) from.push_back(as_tensor(list));
  return {std::move(lists), std::move(from)};
}

at::Tensor gather(const at::Tensor& table, const at::Tensor& given) {
  const at::Tensor ids = checked_ids("muster_rows::gather", given);
  check_table("muster_rows::gather", table);
  const int64_t* row = checked_rows("muster_rows::gather", ids, table);
  std::vector<int64_t> sizes = table.sizes().vec();
  sizes[0] = ids.numel();
  at::Tensor result = at::empty(sizes, table.options());
  const size_t bytes = static_cast<size_t>(row_size(table)) * table.itemsize();
  const auto* from = static_cast<const char*>(table.const_data_ptr());
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const int64_t count = ids.numel();
  if (const RowTable* on_demand = RowTable::of(table)) {
    for (int64_t i = 0; i < count; ++i, to += bytes) {
      if (on_demand->written(row[i])) {
        std::memcpy(to, from + static_cast<size_t>(row[i]) * bytes, bytes);
      } else {
        on_demand->initial(row[i], to);
      }
    }
    return result;
  }
  with_row_bytes(bytes, [&](auto size) {
    in_parts(count, bytes, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (i + kAhead < last) __builtin_prefetch(from + row[i + kAhead] * size);
        std::memcpy(to + i * size, from + row[i] * size, static_cast<size_t>(size));
      }
    });
  });
  return result;
}

at::Tensor expand(const at::Tensor& given, at::TensorList rows) {
  constexpr const char* kOp = "muster_rows::expand";
  const at::Tensor places = checked_places(kOp, given);
  check_parts(kOp, rows);
  const size_t bytes = static_cast<size_t>(row_size(rows[0])) * rows[0].itemsize();
  std::vector<const char*> row;
  for (const at::Tensor& part : rows) {
    const auto* data = static_cast<const char*>(part.const_data_ptr());
    const int64_t count = part.size(0);
    for (int64_t i = 0; i < count; ++i) row.push_back(data + static_cast<size_t>(i) * bytes);
  }
  std::vector<int64_t> sizes = rows[0].sizes().vec();
  sizes[0] = places.numel();
  at::Tensor result = at::empty(sizes, rows[0].options());
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const auto* place = places.const_data_ptr<int32_t>();
  const int64_t count = places.numel(), known = static_cast<int64_t>(row.size());
  with_row_bytes(bytes, [&](auto size) {
    in_parts(count, bytes, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (place[i] >= known) throw out_of_range(kOp, ": place ", place[i]);
        if (place[i] < 0) {
          std::memset(to + i * size, 0, static_cast<size_t>(size));
        } else {
          std::memcpy(to + i * size, row[static_cast<size_t>(place[i])], static_cast<size_t>(size));
        }
      }
    });
  });
  return result;
}

namespace {

// One row after the other has its elements in order; there may be something between them, where the gradient is a part
// of a wider one.
bool has_rows_in_order(const at::Tensor& gradient) {
  int64_t expected = 1;
  for (int64_t i = gradient.dim(); --i > 0;) {
    if (gradient.size(i) != 1 && gradient.stride(i) != expected) return false;
    expected *= gradient.size(i);
  }
  return true;
}

}  // namespace

std::vector<at::Tensor> sum(const at::Tensor& given, const at::Tensor& given_places, at::TensorList ids) {
  constexpr const char* kOp = "muster_rows::sum";
  const at::Tensor places = checked_places(kOp, given_places);
  for (const at::Tensor& part : ids) (void)checked_ids(kOp, part);
  check_gradient(kOp, given, places);
  const at::Tensor gradient = has_rows_in_order(given) ? given : given.contiguous();
  const int64_t stride = gradient.stride(0), count = places.numel();
  std::vector<at::Tensor> sums;
  std::vector<int64_t> sizes = gradient.sizes().vec();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradient.scalar_type(), "muster_rows::sum", [&] {
    std::vector<scalar_t*> row;
    const int64_t elements = row_size(gradient);
    for (const at::Tensor& part : ids) {
      const int64_t rows = sizes[0] = part.numel();
      sums.push_back(at::empty(sizes, gradient.options()));
      auto* data = sums.back().mutable_data_ptr<scalar_t>();
      for (int64_t i = 0; i < rows; ++i) row.push_back(data + i * elements);
    }
    const auto* from = gradient.const_data_ptr<scalar_t>();
    const auto* place = places.const_data_ptr<int32_t>();
    const auto known = static_cast<int64_t>(row.size());
    auto add_up = [&](auto width, const auto& mine) {
      std::vector<uint8_t> begun(row.size());  // most rows are there once: they are written and not added to
      for (int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count && mine(place[i + kAhead])) __builtin_prefetch(from + (i + kAhead) * stride);
        if (place[i] < 0) continue;
        if (place[i] >= known) throw out_of_range(kOp, ": place ", place[i]);
        if (!mine(place[i])) continue;
        scalar_t* __restrict to = row[static_cast<size_t>(place[i])];
        const scalar_t* __restrict one = from + i * stride;
        if (std::exchange(begun[static_cast<size_t>(place[i])], 1) != 0) {
          for (int64_t j = 0; j < width; ++j) to[j] += one[j];
        } else {
          for (int64_t j = 0; j < width; ++j) to[j] = scalar_t(0) + one[j];  // of -0, too
        }
      }
      for (int64_t i = 0; i < known; ++i) {
        if (mine(i) && begun[static_cast<size_t>(i)] == 0) {
          std::fill_n(row[static_cast<size_t>(i)], static_cast<int64_t>(width), scalar_t(0));
        }
      }
    };
    with_width(elements, [&](auto width) {
      by_owner(count, elements * static_cast<int64_t>(sizeof(scalar_t)),
               [&](const auto& mine) { add_up(width, mine); });
    });
  });
  return sums;
}

namespace {

// The rows before they are changed: those that are made on demand are made now, and whoever wants to know of it is
// told.
void make_rows(const at::Tensor& table, const int64_t* row, int64_t count) {
  if (ChangedRows* changed = ChangedRows::of(table)) changed->add(row, count);
  RowTable* on_demand = RowTable::of(table);
  if (on_demand == nullptr) return;
  for (int64_t i = 0; i < count; ++i) on_demand->write(row[i]);
}

// Calls update(offset of the row in its table, row of the gradient) for each id, on several threads for different rows
// if they are many. All of `tables` are written there.
template <class T, class Update>
void for_each_row(std::initializer_list<const at::Tensor*> tables, const int64_t* row, const at::Tensor& gradient,
                  const Update& update) {
  const int64_t width = row_size(gradient), count = gradient.size(0);
  const T* from = gradient.const_data_ptr<T>();
  std::array<const T*, 3> memory{};
  size_t used = 0;
  for (const at::Tensor* table : tables) {
    make_rows(*table, row, count);
    memory[used++] = table->const_data_ptr<T>();
  }
  auto update_rows = [&](auto elements, const auto& mine) {
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count && mine(row[i + kAhead])) {
        for (size_t t = 0; t < used; ++t) __builtin_prefetch(memory[t] + row[i + kAhead] * elements, /*to write*/ 1);
      }
      if (mine(row[i])) update(row[i] * elements, from + i * elements, elements);
    }
  };
  with_width(width, [&](auto elements) {
    by_owner(count, width * static_cast<int64_t>(sizeof(T)), [&](const auto& mine) { update_rows(elements, mine); });
  });
}

double one_number(const char* op, const char* what, const at::Tensor& given) {
  if (given.defined() && given.numel() == 1) return given.item().toDouble();
  throw invalid_argument(op, ": the ", what, " is ", name_of(given), ", expected one number");
}

}  // namespace

void add_(at::Tensor& table, const at::Tensor& given, const at::Tensor& rows, double scale) {
  const at::Tensor ids = checked_ids("muster_rows::add_", given);
  check_pair("muster_rows::add_", table, ids, rows);
  const int64_t* row = checked_rows("muster_rows::add_", ids, table);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, table.scalar_type(), "muster_rows::add_", [&] {
    using Wide = at::opmath_type<scalar_t>;
    auto* memory = table.mutable_data_ptr<scalar_t>();
    const auto by = static_cast<Wide>(scale);
    for_each_row<scalar_t>({&table}, row, rows, [&](int64_t at, const scalar_t* from, auto width) {
      for (int64_t j = 0; j < width; ++j) {
        memory[at + j] = static_cast<scalar_t>(static_cast<Wide>(memory[at + j]) + by * static_cast<Wide>(from[j]));
      }
    });
  });
}

void adagrad_(at::Tensor& table, at::Tensor& sums, const at::Tensor& given, const at::Tensor& gradient,
              const at::Tensor& rate, double epsilon) {
  const at::Tensor ids = checked_ids("muster_rows::adagrad_", given);
  check_pair("muster_rows::adagrad_", table, ids, gradient);
  check_pair("muster_rows::adagrad_", sums, ids, gradient);
  const int64_t* row = checked_rows("muster_rows::adagrad_", ids, table);
  if (sums.size(0) < table.size(0)) checked_rows("muster_rows::adagrad_", ids, sums);
  const double number = one_number("muster_rows::adagrad_", "rate", rate);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, table.scalar_type(), "muster_rows::adagrad_", [&] {
    using Wide = at::opmath_type<scalar_t>;
    auto* const memory = table.mutable_data_ptr<scalar_t>();
    auto* const squares = sums.mutable_data_ptr<scalar_t>();
    const auto by = static_cast<Wide>(number), least = static_cast<Wide>(epsilon);
    for_each_row<scalar_t>({&table, &sums}, row, gradient, [&](int64_t at, const scalar_t* from, auto width) {
      scalar_t* __restrict value = memory + at;
      scalar_t* __restrict square = squares + at;
      for (int64_t j = 0; j < width; ++j) {
        const Wide g = from[j], sum = static_cast<Wide>(square[j]) + g * g;
        square[j] = static_cast<scalar_t>(sum);
        value[j] = static_cast<scalar_t>(static_cast<Wide>(value[j]) - by * g / (std::sqrt(sum) + least));
      }
    });
  });
}

void adam_(at::Tensor& table, at::Tensor& mean, at::Tensor& variance, const at::Tensor& step, const at::Tensor& given,
           const at::Tensor& gradient, const at::Tensor& given_rate, double beta1, double beta2, double epsilon,
           double decay) {
  const at::Tensor ids = checked_ids("muster_rows::adam_", given);
  for (const at::Tensor& each : {table, mean, variance}) check_pair("muster_rows::adam_", each, ids, gradient);
  const int64_t* row = checked_rows("muster_rows::adam_", ids, table);
  for (const at::Tensor& each : {mean, variance}) checked_rows("muster_rows::adam_", ids, each);
  const double steps = one_number("muster_rows::adam_", "count of steps", step);
  const double rate = one_number("muster_rows::adam_", "rate", given_rate);
  const double correction1 = 1 - std::pow(beta1, steps), correction2 = std::sqrt(1 - std::pow(beta2, steps));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, table.scalar_type(), "muster_rows::adam_", [&] {
    auto* memory = table.mutable_data_ptr<scalar_t>();
    auto* first = mean.mutable_data_ptr<scalar_t>();
    auto* second = variance.mutable_data_ptr<scalar_t>();
    for_each_row<scalar_t>(
        {&table, &mean, &variance}, row, gradient, [&](int64_t at, const scalar_t* from, auto width) {
          for (int64_t j = 0; j < width; ++j) {
            const double g = from[j];
            const double mean_before = first[at + j], variance_before = second[at + j];
            const double m = mean_before + (g - mean_before) * (1 - beta1);
            const double v = variance_before * beta2 + g * g * (1 - beta2);
            first[at + j] = static_cast<scalar_t>(m);
            second[at + j] = static_cast<scalar_t>(v);
            memory[at + j] = static_cast<scalar_t>(static_cast<double>(memory[at + j]) * (1 - rate * decay) -
                                                   rate / correction1 * m / (std::sqrt(v) / correction2 + epsilon));
          }
        });
  });
}

void on_demand_(at::Tensor& table, int64_t kind, double a, double b, int64_t seed, int64_t first_row) {
  if (kind < RowRule::kConstant || kind > RowRule::kNormal) {  // before it becomes one of a few
    throw invalid_argument("muster_rows::on_demand_: there is no rule ", kind);
  }
  if (ChangedRows* changed = ChangedRows::of(table)) changed->add_all();
  RowTable::begin(table, {static_cast<RowRule::Kind>(kind), a, b, static_cast<uint64_t>(seed), first_row});
}

// As divisions, one after the other where a row is named more than once: a product with reciprocals is not the same.
void divide_rows(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  const at::Tensor here = ids.cpu();
  std::map<int64_t, size_t> times;
  std::vector<std::vector<int64_t>> turns;  // in each of which a row is named once
  for (int64_t i = 0; i < here.numel(); ++i) {
    const size_t turn = times[here.data_ptr<int64_t>()[i]]++;
    if (turn == turns.size()) turns.emplace_back();
    turns[turn].push_back(i);
  }
  const auto rounding = at::isFloatingType(table.scalar_type()) ? std::optional<std::string_view>() : "trunc";
  for (const std::vector<int64_t>& turn : turns) {
    const at::Tensor which = at::tensor(turn, ids.options());
    const at::Tensor named = ids.index_select(0, which);
    table.index_copy_(0, named, table.index_select(0, named).div_(rows.index_select(0, which), rounding));
  }
}

void scatter_(at::Tensor& table, const at::Tensor& given, const at::Tensor& rows, std::string_view how) {
  const at::Tensor ids = checked_ids("muster_rows::scatter_", given);
  check_pair("muster_rows::scatter_", table, ids, rows);
  if (ids.is_cpu()) {
    const int64_t* row = checked_rows("muster_rows::scatter_", ids, table);
    if (table.is_cpu()) make_rows(table, row, ids.numel());
  } else {
    composed::check_rows("muster_rows::scatter_", ids, {table});
  }
  if (how == "add") {
    table.index_add_(0, ids, rows);
  } else if (how == "sub") {
    table.index_add_(0, ids, rows, -1);
  } else if (how == "mul") {
    table.index_reduce_(0, ids, rows, "prod");
  } else if (how == "div") {
    divide_rows(table, ids, rows);
  } else if (how == "min") {
    table.index_reduce_(0, ids, rows, "amin");
  } else if (how == "max") {
    table.index_reduce_(0, ids, rows, "amax");
  } else if (how == "update") {
    table.index_copy_(0, ids, rows);
  } else {
    throw invalid_argument("muster_rows::scatter_: \"", how, "\" is none of add, sub, mul, div, min, max, update");
  }
}

}  // namespace kernels

namespace {

// Through the dispatcher, where a tracer may listen.
template <class Signature, class... Args>
auto call(const char* op, Args&&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Signature>().call(std::forward<Args>(args)...);
}

using Parts = std::vector<at::Tensor>;

}  // namespace

std::tuple<at::Tensor, Parts> unique(const at::Tensor& ids, at::IntArrayRef starts) {
  return call<std::tuple<at::Tensor, Parts>(const at::Tensor&, at::IntArrayRef)>("muster_rows::unique", ids, starts);
}

std::tuple<Parts, Parts> route(const at::Tensor& ids, at::IntArrayRef starts) {
  return call<std::tuple<Parts, Parts>(const at::Tensor&, at::IntArrayRef)>("muster_rows::route", ids, starts);
}

at::Tensor gather(const at::Tensor& table, const at::Tensor& ids) {
  return call<at::Tensor(const at::Tensor&, const at::Tensor&)>("muster_rows::gather", table, ids);
}

at::Tensor expand(const at::Tensor& places, at::TensorList rows) {
  return call<at::Tensor(const at::Tensor&, at::TensorList)>("muster_rows::expand", places, rows);
}

Parts sum(const at::Tensor& gradient, const at::Tensor& places, at::TensorList ids) {
  return call<Parts(const at::Tensor&, const at::Tensor&, at::TensorList)>("muster_rows::sum", gradient, places, ids);
}

void add_(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, double scale) {
  call<void(at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("muster_rows::add_", table, ids, rows, scale);
}

void adagrad_(at::Tensor& table, at::Tensor& sums, const at::Tensor& ids, const at::Tensor& gradient,
              const at::Tensor& rate, double epsilon) {
  call<void(at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>(
      "muster_rows::adagrad_", table, sums, ids, gradient, rate, epsilon);
}

void adam_(at::Tensor& table, at::Tensor& mean, at::Tensor& variance, const at::Tensor& step, const at::Tensor& ids,
           const at::Tensor& gradient, const at::Tensor& rate, double beta1, double beta2, double epsilon,
           double decay) {
  call<void(at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
            const at::Tensor&, double, double, double, double)>("muster_rows::adam_", table, mean, variance, step, ids,
                                                                gradient, rate, beta1, beta2, epsilon, decay);
}

void on_demand_(at::Tensor& table, int64_t kind, double a, double b, int64_t seed, int64_t first_row) {
  call<void(at::Tensor&, int64_t, double, double, int64_t, int64_t)>("muster_rows::on_demand_", table, kind, a, b, seed,
                                                                     first_row);
}

void scatter_(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, std::string_view how) {
  call<void(at::Tensor&, const at::Tensor&, const at::Tensor&, std::string_view)>("muster_rows::scatter_", table, ids,
                                                                                  rows, how);
}

TORCH_LIBRARY(muster_rows, library) {
  library.def("unique(Tensor ids, int[] starts) -> (Tensor, Tensor[])");
  library.def("route(Tensor ids, int[] starts) -> (Tensor[], Tensor[])");
  library.def("gather(Tensor table, Tensor ids) -> Tensor");
  library.def("expand(Tensor places, Tensor[] rows) -> Tensor");
  library.def("sum(Tensor gradient, Tensor places, Tensor[] ids) -> Tensor[]");
  library.def("add_(Tensor(a!) table, Tensor ids, Tensor rows, float scale) -> ()");
  library.def(
      "adagrad_(Tensor(a!) table, Tensor(b!) sums, Tensor ids, Tensor gradient, Tensor rate, float epsilon) -> ()");
  library.def(
      "adam_(Tensor(a!) table, Tensor(b!) mean, Tensor(c!) variance, Tensor step, Tensor ids, Tensor gradient, "
      "Tensor rate, float beta1, float beta2, float epsilon, float decay) -> ()");
  library.def("on_demand_(Tensor(a!) table, int kind, float a, float b, int seed, int first_row) -> ()");
  library.def("scatter_(Tensor(a!) table, Tensor ids, Tensor rows, str how) -> ()");
}

// Made of ops that every kind of device has.
TORCH_LIBRARY_IMPL(muster_rows, CompositeExplicitAutograd, library) { library.impl("scatter_", kernels::scatter_); }

TORCH_LIBRARY_IMPL(muster_rows, CPU, library) {
  library.impl("unique", kernels::unique);
  library.impl("route", kernels::route);
  library.impl("gather", kernels::gather);
  library.impl("expand", kernels::expand);
  library.impl("sum", kernels::sum);
  library.impl("add_", kernels::add_);
  library.impl("adagrad_", kernels::adagrad_);
  library.impl("adam_", kernels::adam_);
  library.impl("on_demand_", kernels::on_demand_);
}

}  // namespace muster::rows
