// Options of compile() that each output of a model may have of its own.
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/fit/criteria/metric.h"

namespace muster {

// One for all outputs; or a list with one for each, {a, b} in their order or {{"class", a}, {"box", b}} by their names.
// A value.
template <class T>
class PerOutput {
 public:
  class Entry {
   public:
    template <std::convertible_to<T> Value>
    Entry(Value value) : what_(std::move(value)) {}  // NOLINT: it goes into lists
    template <std::convertible_to<T> Value>
    Entry(std::string output, Value value) : output_(std::move(output)), what_(std::move(value)) {}

    const std::string& output() const { return output_; }  // empty: that of its place
    const T& what() const { return what_; }

   private:
    std::string output_;
    T what_;
  };

  PerOutput() = default;  // none
  template <class Value>
    requires(!std::same_as<Value, PerOutput> && std::convertible_to<Value, T>)
  PerOutput(Value of_all) : entries_{Entry(std::move(of_all))}, for_all_(true) {}  // NOLINT: one is often enough
  PerOutput(std::initializer_list<Entry> entries) : entries_(entries) {}
  PerOutput(std::vector<Entry> entries, bool for_all) : entries_(std::move(entries)), for_all_(for_all) {}

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& entries() const { return entries_; }
  bool for_all() const { return for_all_; }  // the one entry is that of every output

 private:
  std::vector<Entry> entries_;
  bool for_all_ = false;
};

using MetricList = std::vector<Metric>;

// Metrics of all outputs, {Accuracy(), Auc()}; of each, {{Accuracy(), Auc()}, {R2Score()}} in their order or
// {{"class", Accuracy()}, {"box", {MeanAbsoluteError(), R2Score()}}} by their names. A value.
class OutputMetrics : public PerOutput<MetricList> {
 public:
  // One metric or several.
  class Several {
   public:
    Several(const Metric& one) : all_{one} {}                          // NOLINT: it goes into lists
    Several(std::initializer_list<Metric> several) : all_(several) {}  // NOLINT
    const MetricList& all() const { return all_; }

   private:
    MetricList all_;
  };
  class Part {
   public:
    Part(const Metric& one) : entry_(MetricList{one}), of_all_(true) {}                       // NOLINT
    Part(std::initializer_list<Metric> of_next) : entry_(MetricList(of_next)) {}              // NOLINT
    Part(std::string output, const Several& some) : entry_(std::move(output), some.all()) {}  // NOLINT

   private:
    friend class OutputMetrics;
    Entry entry_;
    bool of_all_ = false;
  };

  OutputMetrics() = default;
  OutputMetrics(MetricList of_all) : PerOutput({std::move(of_all)}, /*for_all=*/true) {}  // NOLINT
  // Throws Error{kInvalidArgument} for a list of metrics and lists of them.
  OutputMetrics(std::initializer_list<Part> parts) : PerOutput(put_together(parts)) {}

 private:
  static PerOutput<MetricList> put_together(std::initializer_list<Part> parts);
};

}  // namespace muster
