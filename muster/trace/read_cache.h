// Variables that are read once.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>

#include "muster/trace/variable.h"

namespace muster {

class Tracer;

// Until the scope ends, every read of a variable by this thread gives the value of the first read in it, whatever was
// written since. Opened inside of a traced function it is about what that function reads, outside of one about what is
// read there. Rows that are looked up are not kept, and gradients pass through. Scopes do not nest:
// Error{kInvalidArgument}.
class [[nodiscard]] ReadCacheScope {
 public:
  ReadCacheScope();
  ~ReadCacheScope();
  ReadCacheScope(const ReadCacheScope&) = delete;
  ReadCacheScope& operator=(const ReadCacheScope&) = delete;

  static ReadCacheScope* current();

  // The kept value, or what `read` gives.
  template <class Read>
  at::Tensor value(const std::shared_ptr<Variable::State>& variable, const Read& read) {
    if (at::Tensor known = find(variable); known.defined()) return known;
    return keep(variable, read());
  }

 private:
  at::Tensor find(const std::shared_ptr<Variable::State>& variable) const;
  at::Tensor keep(const std::shared_ptr<Variable::State>& variable, at::Tensor value);

  Tracer* const tracer_;  // null: outside of traced functions
  std::map<std::shared_ptr<Variable::State>, at::Tensor> values_;
};

}  // namespace muster
