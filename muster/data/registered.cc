#include "muster/data/registered.h"

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_join.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/data/dataset.pb.h"
#include "muster/data/serialize_columns.h"
#include "muster/data/serialize_files.h"
#include "muster/data/sources/source.h"
#include "muster/data/user_code.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// What was registered under names. Thread-safe.
template <class Made>
class MakersByName {
 public:
  using Make = std::function<Made(const RegisteredOptions&)>;

  explicit MakersByName(const char* what) : what_(what) {}

  void add(const std::string& name, Make make) ABSL_LOCKS_EXCLUDED(mu_) {
    if (name.empty() || !make) throw invalid_argument(what_, " \"", name, "\": expected a name and a function");
    absl::MutexLock lock(&mu_);
    if (!makers_.emplace(name, std::move(make)).second)
      throw already_exists(what_, " \"", name, "\" is registered already");
  }

  Make find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (const auto found = makers_.find(name); found != makers_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [each, make] : makers_) known.push_back(str_cat("\"", each, "\""));
    throw not_found(what_, " \"", name, "\" is not registered in this process; ",
                    known.empty() ? "there is none" : str_cat("there are ", absl::StrJoin(known, ", ")));
  }

 private:
  const char* const what_;
  mutable absl::Mutex mu_;
  std::map<std::string, Make> makers_ ABSL_GUARDED_BY(mu_);
};

MakersByName<ColumnGenerator>& registered_sources() {
  static auto& sources = *new MakersByName<ColumnGenerator>("dataset source");
  return sources;
}

MakersByName<ColumnFunction>& registered_maps() {
  static auto& maps = *new MakersByName<ColumnFunction>("dataset map");
  return maps;
}

template <class Made>
Made made_by(const std::function<Made(const RegisteredOptions&)>& make, const RegisteredOptions& options,
             const std::string& who) {
  if (Made made = call_user_code(who, [&] { return make(options); })) return made;
  throw invalid_argument(who, ": it made an empty function");
}

// As all elements are: columns that are there, and as many as were announced, without gradients.
Columns checked_element(Columns element, const std::vector<std::string>& names, const std::string& who) {
  if (element.empty() || (!names.empty() && element.size() != names.size())) {
    throw invalid_argument(who, ": an element of ", element.size(), " columns, expected ",
                           names.empty() ? "at least one" : str_cat("those named ", absl::StrJoin(names, ", ")));
  }
  PlainTensors plain;
  for (Column& column : element) {
    if (column.holds_strings()) continue;
    if (!column.tensor().defined()) throw invalid_argument(who, ": an element with an undefined tensor");
    if (column.tensor().requires_grad()) column = column.tensor().detach();
  }
  return element;
}

class RegisteredSource : public Source {
 public:
  explicit RegisteredSource(const RegisteredOp& op)
      : op_(op), make_(registered_sources().find(op.name)), generator_(made()) {}

  std::optional<Columns> next() override {
    if (ended_) return std::nullopt;
    c10::AutoGradMode no_gradients(false);
    std::optional<Columns> element = call_user_code(who(), generator_);
    ended_ = !element;
    if (!element) return std::nullopt;
    return checked_element(*std::move(element), op_.names, who());
  }
  void restart() override {
    generator_ = made();
    ended_ = false;
  }

 private:
  std::string who() const { return str_cat("dataset source \"", op_.name, "\""); }
  ColumnGenerator made() const { return made_by(make_, op_.options, who()); }

  const RegisteredOp op_;
  const std::function<ColumnGenerator(const RegisteredOptions&)> make_;
  ColumnGenerator generator_;
  bool ended_ = false;
};

std::unique_ptr<Source> open_native(ColumnFunction function, const std::vector<std::string>& names, Parallel parallel,
                                    const std::string& who, std::unique_ptr<Source> input, const OpenContext& context) {
  auto change = [function = std::move(function), names, who](Columns element) {
    c10::AutoGradMode no_gradients(false);
    Columns changed = call_user_code(who, [&] { return function(std::move(element)); });
    return checked_element(std::move(changed), names, who);
  };
  return open_change(std::move(change), parallel, std::move(input), context);
}

void check_threads(const Parallel& parallel, const char* step) {
  if (parallel.threads < 1 && parallel.threads != kAutoThreads)
    throw invalid_argument(step, ": threads ", parallel.threads, ", expected at least 1");
}

}  // namespace

void register_dataset_source(const std::string& name, std::function<ColumnGenerator(const RegisteredOptions&)> make) {
  registered_sources().add(name, std::move(make));
}

void register_dataset_map(const std::string& name, std::function<ColumnFunction(const RegisteredOptions&)> make) {
  registered_maps().add(name, std::move(make));
}

Dataset Dataset::registered(const std::string& name, RegisteredOptions options, std::vector<std::string> columns) {
  if (name.empty()) throw invalid_argument("registered: an empty name, expected that of a source");
  return dataset_of(RegisteredOp{.name = name, .options = std::move(options), .names = std::move(columns)});
}

Dataset Dataset::map_registered(const std::string& name, RegisteredOptions options, Parallel parallel,
                                std::vector<std::string> columns) const {
  if (name.empty()) throw invalid_argument("map_registered: an empty name, expected that of a map");
  check_threads(parallel, "map_registered");
  return dataset_of(
      RegisteredOp{.name = name, .options = std::move(options), .names = std::move(columns), .parallel = parallel},
      {node_});
}

Dataset Dataset::map_native(ColumnFunction function, Parallel parallel, std::vector<std::string> columns) const {
  if (!function) throw invalid_argument("map_native: an empty function");
  check_threads(parallel, "map_native");
  return dataset_of(NativeMapOp{std::move(function), std::move(columns), parallel}, {node_});
}

std::unique_ptr<Source> open_op(const RegisteredOp& op) { return std::make_unique<RegisteredSource>(op); }

std::unique_ptr<Source> open_registered_map(const RegisteredOp& op, std::unique_ptr<Source> input,
                                            const OpenContext& context) {
  const std::string who = str_cat("dataset map \"", op.name, "\"");
  ColumnFunction function = made_by(registered_maps().find(op.name), op.options, who);
  return open_native(std::move(function), op.names, op.parallel, who, std::move(input), context);
}

std::unique_ptr<Source> open_op(const NativeMapOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return open_native(op.function, op.names, op.parallel, "map_native", std::move(input), context);
}

// ---- On the wire
void write_op(const RegisteredOp& op, proto::Dataset& out) {
  const bool source = out.inputs_size() == 0;
  proto::Dataset::Registered& registered = source ? *out.mutable_registered_source() : *out.mutable_registered_map();
  registered.set_name(op.name);
  for (const auto& [name, value] : op.options) {
    auto& option = *registered.add_options();
    option.set_name(name);
    option.set_value(value);
  }
  for (const std::string& name : op.names) registered.add_columns(name);
  registered.set_threads(op.parallel.threads);
  registered.set_unordered(!op.parallel.deterministic);
}

Dataset read_registered(const proto::Dataset::Registered& in, const std::vector<Dataset>& inputs) {
  if (in.columns_size() > kMostColumns) {
    throw invalid_argument("dataset: ", in.columns_size(), " columns, expected at most ", kMostColumns);
  }
  RegisteredOptions options;
  for (const auto& option : in.options()) options.emplace(option.name(), option.value());
  std::vector<std::string> columns(in.columns().begin(), in.columns().end());
  if (inputs.empty()) return Dataset::registered(in.name(), std::move(options), std::move(columns));
  return inputs.front().map_registered(in.name(), std::move(options), read_within_bounds(in), std::move(columns));
}

}  // namespace muster
