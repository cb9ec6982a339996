// How a position in a dataset is written.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "muster/base/status.h"

namespace muster {

// Where a sequence is: what it draws by, and how many elements were taken.
struct Place {
  uint64_t seed = 0, draws = 0;  // 0: those of another one
  int64_t taken = 0;
  std::string dataset{};  // its fingerprint; none: of a Muster that did not say it

  std::string text() const {
    return str_cat("seed ", seed, " draws ", draws, " taken ", taken, dataset.empty() ? "" : " of ", dataset);
  }
  // Throws Error{kInvalidArgument}.
  static Place from(const std::string& text) {
    Place place;
    std::istringstream in(text);
    std::string seed, draws, taken, of;
    in >> seed >> place.seed >> draws >> place.draws >> taken >> place.taken;
    bool is_one = in && seed == "seed" && draws == "draws" && taken == "taken" && place.taken >= 0;
    if (is_one && in >> of) {
      std::getline(in >> std::ws, place.dataset);
      is_one = of == "of" && !place.dataset.empty();
    }
    if (!is_one) throw invalid_argument("from: \"", text.substr(0, 100), "\" is no position of a dataset");
    return place;
  }
};

}  // namespace muster
