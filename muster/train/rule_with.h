#pragma once

#include <string>
#include <utility>
#include <vector>

#include "muster/train/optimizer.h"

namespace muster {

// Nothing can be one. Where `Sgd({})` could mean the options or, to GCC, another Sgd, a list of these decides for the
// options.
struct NoOption {
  NoOption() = delete;
};

// A rule with options of its own, of which those that all rules have are the optimizer's.
template <class Options>
class RuleWith : public Optimizer {
 protected:
  RuleWith(std::string name, std::vector<SlotRule> slots, const Options& options)
      : Optimizer({.name = std::move(name),
                   .slots = std::move(slots),
                   .learning_rate = options.learning_rate,
                   .weight_decay = decay_of(options),
                   .all = options.all}),
        options_(options) {}

  Options options_;

 private:
  static double decay_of(const Options& options) {
    if constexpr (requires { options.weight_decay; }) return options.weight_decay;
    return 0;
  }
};

}  // namespace muster
