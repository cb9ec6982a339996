// A sequence of examples that a program takes one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"

namespace muster {

class Worker;

using Element = std::vector<at::Tensor>;

// Thread-safe: `next` may be called from several threads, and each element is handed out once.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  // The next element; nothing after the last one. Throws Error.
  virtual std::optional<Element> next() = 0;
  // Nobody wants any more: who is in next(), however long that would look for one, gets Error{kCancelled}.
  virtual void close() {}
};

// On whose behalf this thread takes elements: while one of these lives, a sequence that takes long to find one ends
// with Error{kCancelled} when the run is cancelled.
class [[nodiscard]] TakingFor {
 public:
  explicit TakingFor(const Cancellation* run);  // null: nobody cancels it
  ~TakingFor();
  TakingFor(const TakingFor&) = delete;
  TakingFor& operator=(const TakingFor&) = delete;

  static void throw_if_cancelled();

 private:
  const Cancellation* const outer_;
};

// Opens a sequence from its description (data/dataset.h knows how): `worker` runs the functions in it.
using OpenSource = std::function<std::unique_ptr<ElementSource>(const std::string& description, Worker& worker)>;

}  // namespace muster
