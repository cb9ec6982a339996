// The words that dump(), dot() and other pictures of a program have in common, and what is said of many names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/graph/op_schema.h"
#include "muster/graph/program.h"

namespace muster {

// In quotes and printable, whatever bytes it has; cut when it is very long.
std::string in_quotes(std::string_view text);

// Of a model with a thousand variables as much as somebody reads: "a, b, c, d, e and 7 more".
std::string first_few(const std::vector<std::string>& texts);

std::string value_name(ValueId value);           // "%12", "_" for kNoValue
std::string describe(const Constant& constant);  // "float32[2] = {1, 2}", "number 0.1"; no values when it is large
std::string describe_results(const Instruction& instruction);  // "%3, [%4, %5]"

// "%3, %4, alpha=1": plain values carry their names, so that one need not know the schema by heart.
std::string describe_arguments(const Instruction& instruction, const OpSchema& schema);
// Of these the plain values alone, for pictures, where the tensors are edges.
std::string describe_settings(const Instruction& instruction, const OpSchema& schema);

}  // namespace muster
