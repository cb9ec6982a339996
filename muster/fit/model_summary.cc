// What a model consists of, as a table.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "muster/base/strings.h"
#include "muster/fit/fit_display.h"
#include "muster/fit/layer_shapes.h"
#include "muster/fit/model.h"

namespace muster {
namespace {

struct Row {
  std::string name, shape, count, given, where;
};

int64_t numbers_in(const Variable& variable) {
  const at::IntArrayRef sizes = variable.sizes();
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// A device of this process by what tells it from the others here: its name says "localhost" whatever task this is. Of
// others without the replica, which is 0, so that a line of the table is short.
std::string place_of(const Variable& part) {
  constexpr std::string_view kHere = "/job:localhost/replica:0/task:0/device:";
  const std::string& device = part.device();
  if (device.empty()) return "here";
  if (device.starts_with(kHere)) return str_cat("here on ", device.substr(kHere.size()));
  return absl::StrReplaceAll(device, {{"/replica:0/", "/"}});
}

std::string where_is(const Variable& variable) {
  if (!variable.shards().empty()) return str_cat(variable.shards().size(), " parts");
  if (!variable.copies().empty()) {
    return absl::StrJoin(variable.copies(), ", ",
                         [](std::string* out, const Variable& copy) { *out += place_of(copy); });
  }
  return place_of(variable);
}

}  // namespace

std::string Model::summary() const {
  std::map<std::string, std::string> given = layers();  // that no variable of theirs has told yet
  const bool known = !given.empty();
  std::vector<Row> rows{{"variable", "shape", "numbers", known ? "layer gives" : "", "where"}};
  int64_t trained = 0, others = 0;
  const auto add = [&rows](std::string name, const Variable& variable, std::string layer_gives = {}) {
    rows.push_back({std::move(name), str_cat("[", absl::StrJoin(variable.sizes(), ", "), "]"),
                    with_commas(numbers_in(variable)), std::move(layer_gives), where_is(variable)});
  };
  const auto named = variables().named();
  const auto given_by_layer_of = [&](const Variable& variable) -> std::string {
    const auto own =
        std::ranges::find_if(named, [&](const auto& one) { return one.second.state() == variable.state(); });
    const auto layer = given.extract(own == named.end() ? "" : layer_of(own->first));
    return layer.empty() ? "" : layer.mapped();
  };
  for (const Variable& variable : variables().all()) {
    add(variable.name(), variable, given_by_layer_of(variable));
    int64_t row = 0;
    for (const Variable& part : variable.shards()) {
      const int64_t first = std::exchange(row, row + part.sizes()[0]);
      add(str_cat("  rows ", with_commas(first), " to ", with_commas(row - 1)), part);
    }
    (variable.trainable() ? trained : others) += numbers_in(variable);
  }
  size_t name = 0, shape = 0, count = 0, gives = 0;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    shape = std::max(shape, row.shape.size());
    count = std::max(count, row.count.size());
    gives = std::max(gives, row.given.size() + 2);
  }
  std::string text;
  for (const Row& row : rows) {
    str_append(text, absl::StrFormat("%-*s  %-*s  %*s  %-*s%s\n", static_cast<int>(name), row.name,
                                     static_cast<int>(shape), row.shape, static_cast<int>(count), row.count,
                                     static_cast<int>(known ? gives : 0), row.given, row.where));
  }
  str_append(text, with_commas(trained), " numbers are trained, ", with_commas(others), " others\n",
             outputs_in_words());
  if (const int64_t processes = strategy().across().size; processes > 1) {
    str_append(text, "each of ", processes, " processes has all of them, and they stay alike\n");
  }
  return text;
}

}  // namespace muster
