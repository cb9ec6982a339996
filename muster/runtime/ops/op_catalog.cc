#include "muster/runtime/ops/op_catalog.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <sstream>

#include "muster/base/status.h"
#include "muster/graph/op_traits.h"

namespace muster {
namespace {

const absl::flat_hash_set<std::string_view>& allowed_names() {
  static const absl::flat_hash_set<std::string_view> names = {
#include "muster/runtime/ops/allowed_ops.inc"
  };
  return names;
}

std::optional<c10::OperatorHandle> lookup(const std::string& name) {
  size_t dot = name.find('.', name.find("::") == std::string::npos ? 0 : name.find("::"));
  std::string base = name.substr(0, dot);
  std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({base, overload});
}

void check_schema(const Op& op, const c10::OperatorHandle& handle) {
  if (const std::string& ours = schema_text(handle); ours != op.schema) {
    throw failed_precondition("op ", op.name, " was recorded as \"", op.schema, "\", but this libtorch has \"", ours,
                              "\"; trace the program with the same version of libtorch");
  }
}

template <class Visit>
void for_each_foreign_op(const Program& program, const Visit& visit) {
  for (const Op& op : program.ops) {
    if (own_op(op.name) == nullptr) visit(op);
  }
  for (const Program& body : program.bodies) for_each_foreign_op(body, visit);
}

}  // namespace

OpCatalog::OpCatalog(std::vector<std::string> extra) : extra_(std::move(extra)) {}

bool OpCatalog::allowed(std::string_view name) const {
  std::string_view base = name.substr(0, name.find('.'));
  if (allowed_names().contains(base)) return true;
  for (const std::string& extra : extra_) {
    if (extra == base || (extra.ends_with("::") && base.starts_with(extra))) return true;
  }
  return false;
}

c10::OperatorHandle OpCatalog::find(const Op& op) const {
  if (!allowed(op.name)) {
    throw Error(
        Status(StatusCode::kPermissionDenied, str_cat("op ", op.name,
                                                      " is not allowed in programs; a task that trusts it lists it in "
                                                      "LocalWorkerOptions::extra_ops")));
  }
  auto handle = lookup(op.name);
  if (!handle) throw failed_precondition("op ", op.name, " does not exist in this libtorch");
  check_schema(op, *handle);
  return *handle;
}

void OpCatalog::verify(const Program& program) const {
  for_each_foreign_op(program, [this](const Op& op) { find(op); });
}

void verify_schemas(const Program& program) {
  for_each_foreign_op(program, [](const Op& op) {
    const auto handle = lookup(op.name);
    if (handle) return check_schema(op, *handle);
    if (op.name.starts_with("aten::") || op.name.starts_with("muster")) {
      throw failed_precondition("op ", op.name, " does not exist in this libtorch");
    }
  });
}

c10::OperatorHandle known_op(std::string_view name) {
  const auto handle = lookup(std::string(name));
  if (!handle) throw failed_precondition("op ", name, " does not exist in this libtorch");
  return *handle;
}

std::optional<std::string> schema_of(const std::string& name) {
  auto handle = lookup(name);
  if (!handle) return std::nullopt;
  return schema_text(*handle);
}

bool has_kernel(const std::string& op, c10::DeviceType type) {
  const auto handle = lookup(op);
  const auto backend = type == at::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return !handle || handle->hasComputedKernelForDispatchKey(backend);
}

// An op is registered once in a process, so its text is made once.
const std::string& schema_text(const c10::OperatorHandle& op) {
  static absl::Mutex mu(absl::kConstInit);
  static auto& texts = *new absl::flat_hash_map<c10::OperatorName, std::unique_ptr<const std::string>>;
  absl::MutexLock lock(&mu);
  std::unique_ptr<const std::string>& known = texts[op.operator_name()];
  if (!known) {
    std::ostringstream text;
    text << op.schema();
    known = std::make_unique<const std::string>(text.str());
  }
  return *known;
}

std::string qualified_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : str_cat(name.name, ".", name.overload_name);
}

}  // namespace muster
