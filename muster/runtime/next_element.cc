#include "muster/runtime/next_element.h"

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

bool looks_like(const Element& element, const std::vector<TensorSpec>& specs) {
  if (element.size() != specs.size()) return false;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (element[i].sizes() != specs[i].sizes || element[i].scalar_type() != scalar_type_of(specs[i].dtype))
      return false;
  }
  return true;
}

}  // namespace

Element next_element(ElementSource& source, const std::vector<TensorSpec>& specs) {
  std::optional<Element> element = source.next();
  if (!element) throw out_of_range("the sequence of examples has ended; add repeat() to begin again");
  if (looks_like(*element, specs)) return std::move(*element);
  std::string given, expected;
  for (const at::Tensor& tensor : *element) given += " " + spec_of(tensor).to_string();
  for (const TensorSpec& spec : specs) expected += " " + spec.to_string();
  throw invalid_argument("the next element is", given, ", but the function was traced for", expected,
                         "; batch(n, drop_remainder) keeps all batches alike");
}

}  // namespace muster
