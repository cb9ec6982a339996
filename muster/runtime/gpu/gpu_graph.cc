#include "muster/runtime/gpu/gpu_graph.h"

#include <absl/synchronization/mutex.h>

#include <atomic>
#include <map>

#include "muster/base/status.h"
#include "muster/runtime/switched_on.h"

#ifdef MUSTER_CUDA_GRAPHS
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace muster {
namespace {

std::atomic<uint64_t> replays_made{0};

}  // namespace

uint64_t GpuGraph::replays() { return replays_made.load(std::memory_order_relaxed); }

#ifdef MUSTER_CUDA_GRAPHS

namespace {

// Libraries keep memory for each stream that they have seen, so all recordings of a device are made on the same two.
// libtorch hands out the same few streams again and again: what another thread put on one that records would be
// recorded instead of done. Copies take those of plain priority, so recordings take two of the others.
struct Streams {
  c10::Stream main, side;
};
absl::Mutex recording_mu(absl::kConstInit);
const Streams& streams_of(at::Device device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(recording_mu) {
  static auto& streams = *new std::map<c10::DeviceIndex, Streams>;
  auto it = streams.find(device.index());
  if (it == streams.end()) {
    const auto take = [&] { return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index()).unwrap(); };
    it = streams.emplace(device.index(), Streams{take(), take()}).first;
  }
  return it->second;
}

// Newer versions of libtorch notice by themselves.
template <class Graph>
void draw_from(Graph& graph, const at::Generator& generator) {
  if constexpr (requires { graph.register_generator_state(generator); }) graph.register_generator_state(generator);
}

}  // namespace

struct GpuGraph::Recording : at::cuda::CUDAGraph {
  // Of a recording that CUDA has ended, capture_end() tells neither the generators nor the allocator that it is over.
  void abandon() {
    try {
      return capture_end();
    } catch (const std::exception&) {
    }
    for (auto& [state, drawn] : captured_generator_states_) end_drawing(*state);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_);
    c10::cuda::CUDACachingAllocator::releasePool(capture_dev_, mempool_id_);
    release_pinned(*at::getHostAllocator(at::kCUDA));
  }

 private:
  // Newer versions of libtorch have pools of pinned memory, too.
  template <class Allocator>
  void release_pinned(Allocator& allocator) {
    if constexpr (requires { allocator.end_allocate_to_pool(mempool_id_); }) {
      allocator.end_allocate_to_pool(mempool_id_);
      allocator.release_pool(mempool_id_);
    }
  }
  // Newer versions of libtorch forget it with the graph.
  template <class State>
  static void end_drawing(State& state) {
    if constexpr (requires { state.capturing_ = false; }) {
      state.capturing_ = false;
      state.offset_intragraph_ = 0;
    }
  }
};

bool GpuGraph::available() {
  static const bool on = switched_on("MUSTER_CUDA_GRAPHS");
  return on;
}

GpuGraph::GpuGraph(at::Device device, const std::vector<at::Generator>& generators,
                   const std::function<void()>& launch) {
  absl::MutexLock lock(&recording_mu);
  const c10::StreamGuard stream(streams_of(device).main);
  recording_ = std::make_unique<Recording>();
  for (const at::Generator& generator : generators) draw_from(*recording_, generator);
  // Other threads go on to use the GPU meanwhile.
  recording_->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    launch();
    recording_->capture_end();
  } catch (...) {
    recording_->abandon();
    recording_.reset();
    throw;
  }
}

// libtorch notes in its own generator who records: whoever ends may not do so while another one begins.
GpuGraph::~GpuGraph() {
  absl::MutexLock lock(&recording_mu);
  recording_.reset();
}

void GpuGraph::between_recordings(const std::function<void()>& what) {
  absl::MutexLock lock(&recording_mu);
  what();
}

// Whoever calls it is called while `recording_mu` is held.
c10::Stream GpuGraph::side_stream(at::Device device) ABSL_NO_THREAD_SAFETY_ANALYSIS { return streams_of(device).side; }

void GpuGraph::replay() {
  recording_->replay();
  replays_made.fetch_add(1, std::memory_order_relaxed);
}

#else

struct GpuGraph::Recording {};

bool GpuGraph::available() { return false; }
GpuGraph::GpuGraph(at::Device, const std::vector<at::Generator>&, const std::function<void()>&) {
  throw failed_precondition("this build has no CUDA graphs");
}
void GpuGraph::replay() {}
void GpuGraph::between_recordings(const std::function<void()>& what) { what(); }
c10::Stream GpuGraph::side_stream(at::Device device) { return c10::Stream(c10::Stream::DEFAULT, device); }
GpuGraph::~GpuGraph() = default;

#endif

}  // namespace muster
