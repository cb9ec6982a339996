// What the outputs of a model are held against.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/fit/criteria/losses.h"
#include "muster/fit/criteria/per_output.h"
#include "muster/fit/history.h"
#include "muster/trace/iterator.h"

namespace muster {

// Of one output.
struct Criterion {
  std::string output{};
  size_t place = 0;      // of the output
  std::string prefix{};  // of its numbers: "box_"; empty if the model has one output
  Loss loss{};           // perhaps none
  double weight = 1;     // of its loss in that of the model
  MetricList metrics{};
};

// What an output should be.
struct Expected {
  at::Tensor target{};
  at::Tensor weights{};  // of examples, [N], or of their positions, [N, T]; undefined: all alike
  at::Tensor mask{};     // which of them count; undefined: all. Weights of type bool are such a mask, too.
};

// The criteria of those outputs that have a loss or metrics, in their order. A value, which never changes.
class Criteria {
 public:
  // Throws Error{kInvalidArgument} for options that are not those of such outputs.
  Criteria(std::vector<std::string> outputs, const PerOutput<Loss>& losses, const PerOutput<double>& weights,
           const OutputMetrics& metrics);

  const std::vector<std::string>& outputs() const { return outputs_; }  // all of them
  const std::vector<Criterion>& all() const { return all_; }
  std::string names() const;  // of the outputs that have one, for a message

  // What a batch adds up to: the number of examples, what each loss is divided by, the losses, the metrics; and the
  // loss to go down. Traced.
  static constexpr size_t kExamples = 0, kDivisors = 1;  // where they begin
  struct Judged {
    at::Tensor sums, loss;
  };
  // `by_class`: a weight for each class, if defined. `batches`: whose mean the step goes down; a loss that is
  // a sum is one over all of them. REQUIRES: as many `expected` as criteria.
  Judged judge(const Features& outputs, const std::vector<Expected>& expected, const at::Tensor& by_class,
               int64_t batches = 1) const;
  size_t length() const;  // of the sums

  // "loss", and with several outputs "box_loss" and "box_accuracy" for "accuracy".
  Logs logs(const std::vector<double>& sums) const;
  std::vector<std::string> numbers() const;  // their names

  // The same with what a loss takes for a label, if a step has failed since one was no class.
  Status explained(const Status& status) const;

  // A line for each output, if there are several.
  std::string to_string() const;

 private:
  size_t losses() const;  // how many there are

  std::vector<std::string> outputs_;
  std::vector<Criterion> all_;
};

}  // namespace muster
