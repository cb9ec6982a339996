// A sequence of examples that a program takes one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster {

class Worker;

using Element = std::vector<at::Tensor>;

// Thread-safe: `next` may be called from several threads, and each element is handed out once.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  // The next element; nothing after the last one. Throws Error.
  virtual std::optional<Element> next() = 0;
};

// Opens a sequence from its description (data/dataset.h knows how): `worker` runs the functions in it.
using OpenSource = std::function<std::unique_ptr<ElementSource>(const std::string& description, Worker& worker)>;

}  // namespace muster
