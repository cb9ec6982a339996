// Numbers, distributions, pictures, text and programs for TensorBoard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/fit/tensorboard/hparams.h"
#include "muster/graph/program.h"
#include "muster/trace/function.h"

namespace muster {

class EventFile;

// A new event file in a directory, which is made if need be; `tensorboard --logdir` shows it, and `muster plot` its
// scalars. Written as tf.summary writes. TensorBoard sees what was written after flush(), or when a few kilobytes are
// together, and when this is destroyed.
// A tag is a name that stays the same from step to step; what stands before a '/' in it is shown together.
// All throw Error{kUnavailable} for what cannot be written. For one thread at a time.
class SummaryWriter {
 public:
  explicit SummaryWriter(const std::string& directory);
  ~SummaryWriter();
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  void scalar(const std::string& tag, double value, int64_t step);
  void scalars(const std::map<std::string, double>& values, int64_t step);

  // How the elements are spread, in 30 buckets; what is not finite is left out. Throws Error{kInvalidArgument} for
  // complex numbers, and for what has no elements to be read: undefined tensors, sparse ones.
  void histogram(const std::string& tag, const at::Tensor& values, int64_t step);

  // One picture [height, width, channels], or several [pictures, height, width, channels] of which the first `most` are
  // written; uint8, or floating-point numbers from 0 to 1, and 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA)
  // channels. Throws Error{kInvalidArgument} for other tensors.
  void image(const std::string& tag, const at::Tensor& pixels, int64_t step, int64_t most = 3);

  void text(const std::string& tag, const std::string& markdown, int64_t step);

  // A program as it was traced. One a directory: TensorBoard shows the last.
  void graph(const Program& program);
  // That of a function for arguments like these: `writer.graph(step, x, y);`
  template <class F, class... Args>
  void graph(const Function<F>& function, const Args&... args) {
    graph(function.program(args...));
  }

  // A row of the table of hyperparameters: this directory is a session, which has ended with these numbers (written as
  // scalars, too).
  void hparams(const Hparams& hparams, const std::map<std::string, double>& metrics);
  // The same in two steps, between which scalars are written here or in directories below. (Of the latter TensorBoard
  // knows that they belong to the session only if it is shown a directory above this.)
  void begin_session(const Hparams& hparams);
  void end_session(bool success = true);
  // Which columns the table has. Without, those that the sessions have, with all of their scalars. Of all directories
  // that TensorBoard shows, one says it: the one above the sessions. Throws Error{kInvalidArgument} for a column
  // without choices, or with choices of several types.
  void experiment(const std::vector<HparamColumn>& hparams, const std::vector<HparamMetric>& metrics);

  void flush();

 private:
  std::unique_ptr<EventFile> file_;
};

}  // namespace muster
