#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/runtime/executor/plan.h"
#include "muster/runtime/gpu/device_flags.h"
#include "muster/runtime/gpu/gpu_graph.h"

namespace muster {

// A stretch of steps (plan.h) of one frame: run step by step a few times, then recorded as a graph that is replayed.
// A graph works at the addresses that it was recorded with. So what it is given is copied to where it was then, unless
// it is always there anyway; if something that cannot be copied is elsewhere, or anything has other sizes, a new graph
// is recorded, and if that happens again and again, the steps are run as before. What it makes is copied out, because
// the next replay overwrites it. It refers to no variable: a writer would work on a copy then. One thread at a time.
class CapturedStretch {
 public:
  // `name` is for the log. Both outlive it.
  CapturedStretch(const Stretch& stretch, const std::string& name, at::Device device)
      : stretch_(stretch), name_(name), device_(device), seen_(stretch.inputs.size()) {}

  // Afterwards `values` are as after the steps, in whatever way they were run. `perform` runs them one after the other;
  // with flags, what it would look at on the host is left to them. Throws what it throws, and for flags of the runs
  // before.
  using Perform = std::function<void(DeviceFlags* flags)>;
  void run(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators, const Perform& perform);
  // From then on the steps are run one by one.
  bool given_up() const { return given_up_; }

 private:
  // Rows of a gradient are as many as there were different ids, so sizes are looked at, too.
  struct Place {
    const void* address = nullptr;
    at::ScalarType type = at::ScalarType::Undefined;
    c10::DimVector sizes{}, strides{};
    static Place of(const at::Tensor& tensor);
    bool is_of(const at::Tensor& tensor) const;
  };
  struct Seen {
    Place place{};
    int times = 0;                     // in a row
    bool moves = false;                // was elsewhere, or of another size, at a replay: from then on it is copied
    std::optional<at::Tensor> copy{};  // where the graph finds it, if not where it is
  };
  // What is made: memory of the graph, or part of what it works on in place.
  struct Result {
    at::Tensor tensor{};
    int fixed = -1;
    std::vector<int64_t> sizes{}, strides{};
    int64_t offset = 0;
  };

  void look_at(const std::vector<at::Tensor>& values);
  bool fits(const std::vector<at::Tensor>& values);
  void perform_and_record(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators,
                          const Perform& perform);
  void record(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators, const Perform& perform);
  void give_up(const std::string& why);
  void replay(std::vector<at::Tensor>& values);

  static constexpr int kRunsBefore = 2;                             // libraries set themselves up, and addresses settle
  static constexpr int kMostRecordings = 4, kWorthARecording = 16;  // replays

  const Stretch& stretch_;
  const std::string& name_;
  const at::Device device_;
  std::optional<DeviceFlags> flags_;  // of all recordings
  std::vector<Seen> seen_;            // by input
  std::vector<Place> fixed_;
  std::vector<Result> results_;
  std::unique_ptr<GpuGraph> graph_;
  int runs_ = 0, recordings_ = 0, replays_ = 0;  // of this graph
  bool given_up_ = false;
};

}  // namespace muster
