// A model without the code that has trained it: its forward program as data, and what the program needs to know of its
// weights. The text of it is in the metadata of the safetensors file that has the weights, under kExportedModelKey.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/fit/model_signature.h"
#include "muster/graph/program.h"
#include "muster/graph/resized.h"

namespace muster {

inline constexpr int kExportedModelVersion = 1;

// A tensor of the file that is a variable of the program, under the same name.
struct ExportedWeight {
  std::string name{};
  TensorSpec spec{};
  // Where checkpoints have its values: from this row of this variable on. No variable: it never changes.
  std::string variable{};
  std::vector<int64_t> variable_sizes{};
  int64_t first_row = 0;
};

struct ExportedModel {
  ModelSignature signature{};
  std::vector<ExportedWeight> weights{};
  std::vector<SizedProgram> sized{};                         // for batches of exactly these sizes
  std::optional<std::pair<SizedProgram, SizedProgram>> any;  // for all others, see resized()

  // Throws Error{kInvalidArgument} that says which sizes there are.
  Program program_for(int64_t batch) const;
};

// The programs may come from a stranger: they are checked, have as arguments and variables what the signature and the
// list of the weights say, write to no weight, and run nothing that needs other tasks or sequences of examples. Whether
// libtorch has their ops, and may run them, is for the worker to say. Throws Error{kInvalidArgument} otherwise.
void check(const ExportedModel& model);

std::string to_text(const ExportedModel& model);

// Checked. `where` begins each message: `file "a.safetensors"`. Throws Error{kDataLoss} for a text that is damaged or a
// program that is not in order, Error{kFailedPrecondition} for a version that is not ours.
ExportedModel exported_model_from_text(std::string_view text, const std::string& where);

}  // namespace muster
