// Keras' preprocessing layers over columns of datasets: what all of them have in common. The layers themselves are in
// preprocessing_layers.h.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "muster/data/column.h"

namespace muster {

// Turns one column into one column, whether it is a batch or a single element.
// Immutable and thread-safe; shared by all who use it.
class Preprocessing {
 public:
  // What a layer is made of, so that it can be sent and saved: which layer, and its settings and tables by name.
  struct State {
    std::string kind;
    std::map<std::string, Column> values;
  };

  virtual ~Preprocessing() = default;

  // Throws Error{kInvalidArgument}, which names the layer, what came and what was expected.
  virtual Column operator()(const Column& in) const = 0;

  virtual State state() const = 0;

  // Whether it does to a batch what it does to each of its elements, so that it may as well be done to the batch.
  virtual bool elementwise() const { return false; }
};

// A layer equal to the one that gave the state. The state may come from anywhere: throws Error{kInvalidArgument} for
// one that no layer gives.
std::shared_ptr<const Preprocessing> preprocessing_from(const Preprocessing::State& state);

// Learns the tables of a layer from data.
// Not thread-safe.
class Adapter {
 public:
  virtual ~Adapter() = default;

  // A batch or a single element. Throws Error{kInvalidArgument} for what the layer would not take either.
  virtual void see(const Column& in) = 0;

  // The layer for all that was seen until now; more may be seen afterwards, for another one. Throws
  // Error{kFailedPrecondition} when there was nothing to learn from.
  virtual std::shared_ptr<const Preprocessing> finish() = 0;
};

}  // namespace muster
