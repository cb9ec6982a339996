// The shapes of what the layers of a model give.
#pragma once

#include <map>
#include <string>

#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"

namespace muster {

// The part of a module that has this parameter or buffer: "top.0" of "top.0.weight", "" of "weight".
std::string layer_of(const std::string& name);

// By layer, such as "[batch, 28, 28]", from the autograd graph of a forward pass: a layer gives what the op gives that
// takes its parameters. Only of those where that is one op, or several that give the same shape, so not of an LSTM that
// is many ops, of layers with layers inside, and of those that are not trained. A first size that is that of the inputs
// is the batch.
std::map<std::string, std::string> shapes_of_layers(const ModuleVariables& variables, const Features& inputs,
                                                    const Features& outputs);

}  // namespace muster
