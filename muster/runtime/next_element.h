#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/runtime/run_options.h"
#include "muster/runtime/shared_source.h"

namespace muster {

struct Plan;

// The sequence of examples with this number. Throws Error{kNotFound}.
using FindSource = std::function<std::shared_ptr<SharedSource>(uint64_t number)>;

// The next element of a sequence, for a run that is under way. Throws Error{kOutOfRange} after the last one, and
// Error{kInvalidArgument} for one that does not look as it should.
Element next_element(const FindSource& find, const at::Tensor& number, const ElementSpec& expected,
                     const RunOptions& options);

// The elements that a run takes before it begins. A run that does not begin after all gives them back.
class FirstElements {
 public:
  FirstElements() = default;
  ~FirstElements();
  FirstElements(const FirstElements&) = delete;
  FirstElements& operator=(const FirstElements&) = delete;

  // Throws Error{kOutOfRange} at the end of a sequence, and what other_elements() makes for elements that the plan is
  // not for. REQUIRES: `arguments` are those of the program.
  void take(const Plan& plan, const std::vector<at::Tensor>& arguments, const FindSource& find,
            const RunOptions& options);
  // The run begins, and they are its own.
  std::vector<Element> use();

 private:
  std::vector<std::shared_ptr<SharedSource>> sources_;
  std::vector<Element> elements_;
};

}  // namespace muster
