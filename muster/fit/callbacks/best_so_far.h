// Which of the numbers of epochs is the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/fit/callbacks/callback.h"

namespace muster {

// Whether smaller or larger numbers are better. kAuto: larger for those whose names say accuracy, acc, auc, precision,
// recall, f1, r2, iou or top_5; smaller for others, and for all that end in loss or error. Of a name that says neither
// there is a warning.
enum class Better { kAuto, kSmaller, kLarger };

// Remembers the best of a number.
class BestSoFar {
 public:
  BestSoFar(std::string monitor, Better better, double min_delta = 0);
  // Both throw Error{kNotFound} if an epoch has no such number: it says which callback asks, and what there is. The
  // first one, as far as is known when the training begins; the chief's warns if it is not known what is better, too.
  void expect_in(const Training& training, const char* whose) const;
  bool improves(const Logs& logs, const char* whose);
  void warn_if_guessed(const char* whose) const;
  bool better(double value, double than) const;
  std::optional<double> best() const { return best_; }
  void set_best(double best) { best_ = best; }
  // For Callback::memory(), with numbers of its own; remember() gives these back, none for a text that is not of the
  // same kind of callback and number.
  std::string memory(const std::string& whose, const std::vector<int64_t>& more) const;
  std::vector<int64_t> remember(const std::string& whose, const std::string& memory, size_t count);
  const std::string& monitor() const { return monitor_; }

 private:
  std::string monitor_;
  bool larger_, guessed_;
  double min_delta_;
  std::optional<double> best_{};
};

// Of an epoch. Throws Error{kNotFound} that says which callback asks, and what there is.
double value_of(const Logs& logs, const std::string& name, const char* callback);
// As few digits as tell it from every other number.
std::string in_all_digits(double value);

}  // namespace muster
