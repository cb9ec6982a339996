#include "muster/fit/criteria/per_output.h"

#include "muster/base/status.h"

namespace muster {

PerOutput<MetricList> OutputMetrics::put_together(std::initializer_list<Part> parts) {
  std::vector<Entry> entries;
  MetricList of_all;
  for (const Part& part : parts) {
    if (part.of_all_) {
      of_all.push_back(part.entry_.what()[0]);
    } else {
      entries.push_back(part.entry_);
    }
  }
  if (of_all.empty()) return {std::move(entries), /*for_all=*/false};
  if (entries.empty()) return {{Entry(std::move(of_all))}, /*for_all=*/true};
  throw invalid_argument("compile: metrics has ", of_all.size(), " metrics of all outputs and ", entries.size(),
                         " lists of one output; expected one or the other");
}

}  // namespace muster
