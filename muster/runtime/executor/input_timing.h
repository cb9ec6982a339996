// What the time of an opened sequence of examples is spent on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// One stage of it: what makes, reads or changes elements.
struct StageTiming {
  std::string name{};  // map "augment"
  int lane = 0;        // stages with the same number are done by the same thread, one after the other
  int threads = 1;     // that do it at the same time
  double seconds = 0;  // of all its threads; without those of the stages before it
  int64_t elements = 0;

  double load() const { return seconds / (threads > 0 ? threads : 1); }  // for as long as this it holds up the others
};

// All of them, and whoever takes the elements.
struct InputTiming {
  double seconds = 0;  // since the first element was asked for
  double waited = 0;   // of these, until an element came
  int64_t elements = 0;
  std::vector<StageTiming> stages{};

  // What has come to it since then. Stages are told apart by their place.
  InputTiming since(const InputTiming& before) const;
  // Adds what another one has spent, stage by stage of the same name.
  void add(const InputTiming& other);

  // More of this one would help most: the longest stage of the busiest lane. Null: nothing has been measured.
  const StageTiming* bottleneck() const;
  // Of the work of the busiest lane, what that stage is: from 0 to 1.
  double bottleneck_share() const;
  // "waited for data 812.3 ms of 1000.0 ms, for 100 elements; map "augment" limits it, with 80 % of the work there"
  std::string to_string() const;
};

}  // namespace muster
