// Which ops of this process's libtorch a program may run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// Programs come from other machines, so an op runs only if its name is on the list: allowed_ops.inc, plus what the
// owner of the process adds ("mylib::" allows a whole namespace of custom ops). No op on our list touches files, raw
// pointers or memory that is not checked. Immutable, so free to share between threads.
class OpCatalog {
 public:
  explicit OpCatalog(std::vector<std::string> extra = {});

  bool allowed(std::string_view name) const;  // with or without its overload

  // Throws Error{kPermissionDenied} if the op is not allowed, Error{kFailedPrecondition} if this libtorch does not have
  // it or has it with another schema.
  c10::OperatorHandle find(const Op& op) const;

  // The same for every op of the program and of its bodies, those that no instruction uses included: what has passed
  // may be trusted by whoever knows an op by its name. Parts are for the tasks that run them to judge.
  void verify(const Program& program) const;

 private:
  std::vector<std::string> extra_;
};

// For whoever changes a program that others will run, which may have ops that this process lacks or does not allow.
// Throws Error{kFailedPrecondition} for an op that is here with another schema, or is none of libtorch's own although
// its name says so.
void verify_schemas(const Program& program);

// The op of that name, with overload, that libtorch has in all its versions. Throws if it does not.
c10::OperatorHandle known_op(std::string_view name);

// The schema of an op ("aten::add.Tensor") as this process's libtorch has it.
std::optional<std::string> schema_of(const std::string& name);
// Whether this process's libtorch has an implementation of the op, or makes it of others that it has. True for what is
// no op of libtorch.
bool has_kernel(const std::string& op, c10::DeviceType type);
const std::string& schema_text(const c10::OperatorHandle& op);
std::string qualified_name(const c10::OperatorName& name);

}  // namespace muster
