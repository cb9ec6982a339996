// An exported model with other weights.
#pragma once

#include <string>

namespace muster {

struct ExportCheckpointOptions {
  // A checkpoint, a directory of checkpoints, of which the newest is taken, or a safetensors file, such as
  // save_safetensors writes.
  std::string weights;
  std::string out;
  // An exported model, whose program is taken. None: that which is in the checkpoint, see
  // ModelCheckpointOptions::example_inputs.
  std::string model{};
  // Of a checkpoint: the averages of those weights for which the optimizer has kept some (UpdateOptions::average), as
  // Optimizer::take_averages() puts them in the place of the values.
  bool averages = false;
};

// Writes an exported model of the program and the weights. Throws Error{kNotFound} for no file, checkpoint or program,
// Error{kInvalidArgument} that names the weights (the first ten) which are not there, or are of another shape or
// element type than the program expects, and for averages that nobody has kept, Error{kDataLoss} for what is damaged.
void export_checkpoint(const ExportCheckpointOptions& options);

}  // namespace muster
