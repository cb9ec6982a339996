// What a GPU is told to do, recorded once and told again in one go.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace muster {

// A CUDA graph. One thread at a time.
class GpuGraph {
 public:
  // Whether this build and the environment (MUSTER_CUDA_GRAPHS=off) have them.
  static bool available();
  static uint64_t replays();  // of the process, for tests and reports

  // Records what `launch` launches on the device; nothing of it is done now. Tensors that it makes stay where they are,
  // and are written anew by each replay, as long as the graph lives; numbers from `generators` are drawn anew by each.
  // Throws what `launch` throws and what CUDA says of something that cannot be recorded; then nothing was done.
  GpuGraph(at::Device device, const std::vector<at::Generator>& generators, const std::function<void()>& launch);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  // On the current stream, after what was launched there before.
  void replay();

  // Calls it while nothing is recorded. Memory that a recording has used may be given back only then: libtorch asks the
  // streams that memory was used on for an event, and one that records would make the event part of its graph.
  static void between_recordings(const std::function<void()>& what);

  // For what is recorded beside the rest; the same one for all recordings of a device. REQUIRES: `launch` is running.
  static c10::Stream side_stream(at::Device device);

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
};

}  // namespace muster
