#include <iostream>
#include <memory>

#include "muster/fit/exported/export_checkpoint.h"
#include "muster/fit/exported/loaded_model.h"
#include "tools/subcommands.h"

namespace muster::tools {

void add_export(CLI::App& muster) {
  auto options = std::make_shared<ExportCheckpointOptions>();
  CLI::App* command = muster.add_subcommand("export", "Make a model that can be served of a checkpoint");
  command
      ->add_option("WEIGHTS", options->weights,
                   "A checkpoint, a directory of them (the newest is taken), or a safetensors file")
      ->required();
  command->add_option("OUT", options->out, "The file to write")->required();
  command->add_option("--model", options->model,
                      "An exported model, whose program is taken; else the checkpoint has it, if it was saved with "
                      "example_inputs");
  command->add_flag(
      "--averages", options->averages,
      "Of a checkpoint: the averages of weights in the place of their values, where the optimizer has kept some");
  command->footer(
      "Examples:\n"
      "  muster export checkpoints digits.safetensors\n"
      "  muster export --model digits.safetensors checkpoints/ckpt-900 newer.safetensors");
  command->callback([options] {
    export_checkpoint(*options);
    std::cout << LoadedModel::load(options->out).signature().to_string();
  });
}

}  // namespace muster::tools
