// What the schema string of an op says about memory: which arguments it writes to and which results are views of
// arguments.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/op_table.h"

namespace muster {

struct SchemaArgument {
  std::string name;
  std::string type;     // without the alias annotation: "Tensor", "Tensor?", "Tensor[]", "int[]", "Generator?"
  std::string aliases;  // the letters of its alias set, "" if its memory is its own, "*" if it may be anything
  bool written = false;

  bool is_tensor() const { return type.starts_with("Tensor"); }  // or a list or an optional of tensors
  bool is_list() const { return type.find('[') != std::string::npos; }
};

struct OpSchema {
  std::string name;  // with overload: "aten::add.Tensor"
  std::vector<SchemaArgument> arguments;
  std::vector<SchemaArgument> results;
  OpFacts known{};  // of the op of that name

  bool writes() const;
  bool random() const;  // has a Generator argument; Tracer records no other random op
};

// Parses what libtorch prints, e.g. "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) ->
// Tensor(a!)". Adds the writes and the views that libtorch's own schemas keep quiet about (batch norm updates its
// running statistics, _unsafe_view is a view). Throws Error{kInvalidArgument} for a string that is no schema.
OpSchema parse_schema(std::string_view schema);

// The same, parsed once for all who ask: a program is planned by a dozen passes, and each looks at the same few ops.
std::shared_ptr<const OpSchema> shared_schema(const std::string& schema);

}  // namespace muster
