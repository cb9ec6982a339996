// What is checked on a GPU and looked at later, so that nobody waits for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

// Indices that may be out of range, in a GPU's memory. The kernel that takes them would assert that they are not, and
// the whole process would lose the GPU. So it is given others in their place, 0 for those that are out of range, and a
// flag stays behind. What follows from the 0 is in the results of that step: whoever sees the flag throws them away.
// One thread at a time.
class DeviceFlags {
 public:
  struct Range {
    int64_t least = 0, end = 0;
    std::optional<int64_t> or_else{};  // is in order, too
    bool operator==(const Range&) const = default;
  };

  explicit DeviceFlags(at::Device device);
  // Waits until the device has told its flags.
  ~DeviceFlags();
  DeviceFlags(const DeviceFlags&) = delete;
  DeviceFlags& operator=(const DeviceFlags&) = delete;

  // A recording begins, of steps that are given these. On a GPU checks are made beside the steps, those of what is
  // given from the start on.
  void begin(std::vector<at::Tensor> given);
  // And ends: brings the flags to where throw_if_set() looks.
  void publish();
  // What was kept for the recording, which is over.
  void end();

  // What a kernel can be given in place of `indices`. `what` says what is wrong with those that are not in `range`.
  at::Tensor safe(const at::Tensor& indices, const Range& range, const std::string& what);
  // The same for numbers that must be between 0 and 1.
  at::Tensor safe_fractions(const at::Tensor& numbers, const std::string& what);

  // Memory that was looked at is about to be written.
  void forget(const at::Tensor& written);

  // Error{kInvalidArgument} for the first flag that has arrived, once. It does not wait for the GPU.
  void throw_if_set();

 private:
  struct Seen {
    at::Tensor indices;
    Range range;
    at::Tensor safe;
    bool changed = false;  // kept because steps of the recording still read it
  };
  class Beside;

  template <class Make>
  at::Tensor check(const at::Tensor& numbers, const std::string& what, const Make& make);
  void flag_if(const at::Tensor& wrong, const std::string& what);

  static constexpr int64_t kMost = 256;  // more share the last one
  const at::Device device_;
  const at::Tensor found_;  // on the device, by number of `what_`; stays set
  at::Tensor arrived_;      // the same, in memory that the device writes to
  std::vector<std::string> what_;
  std::vector<Seen> seen_;
  std::vector<at::Tensor> given_;
  std::optional<c10::Event> begun_;
};

}  // namespace muster
