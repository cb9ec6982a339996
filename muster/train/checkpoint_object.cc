#include "muster/train/checkpoint_object.h"

#include <ATen/ops/empty_like.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <cstring>
#include <span>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/graph/program.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// Bytes as text, after what they are. Numbers come back bit by bit.
std::string with_bytes(const std::string& what, std::span<const std::byte> bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return str_cat(what, ":", absl::BytesToHexString(text));
}

std::string bytes_from(const std::string& text, const std::string& what) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.substr(0, colon) != what || (text.size() - colon) % 2 == 0) {
    throw invalid_argument("expected ", what, ", got \"", text.substr(0, 100), "\"");
  }
  return absl::HexStringToBytes(text.substr(colon + 1));
}

}  // namespace

CheckpointObject::CheckpointObject(const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) variables_.emplace_back(str_cat(variables_.size()), variable);
}

CheckpointObject::CheckpointObject(const Optimizer& optimizer) {
  if (!optimizer.bound()) throw invalid_argument("Checkpoints: an optimizer without variables; bind() it first");
  const std::vector<Variable>& trained = optimizer.variables();
  for (const Variable& slot : optimizer.slots()) {
    // "dense/weight/sgd/momentum" is of the variable with the longest name that begins it.
    size_t of = trained.size();
    for (size_t i = 0; i < trained.size(); ++i) {
      const bool begins = slot.name().starts_with(trained[i].name() + "/");
      if (begins && (of == trained.size() || trained[i].name().size() > trained[of].name().size())) of = i;
    }
    MUSTER_CHECK(of < trained.size()) << "slot " << slot.name();
    variables_.emplace_back(str_cat(of, slot.name().substr(trained[of].name().size())), slot);
  }
}

CheckpointObject::CheckpointObject(int64_t* number)
    : save_([number] { return std::to_string(*number); }), restore_([number](const std::string& text) {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value))
          throw invalid_argument("expected a number, got \"", text.substr(0, 100), "\"");
        *number = value;
      }) {}

CheckpointObject::CheckpointObject(std::vector<double>* numbers)
    : save_([numbers] { return with_bytes(str_cat(numbers->size(), " numbers"), std::as_bytes(std::span(*numbers))); }),
      restore_([numbers](const std::string& text) {
        size_t count = 0;
        const std::string first = text.substr(0, text.find(' '));
        if (!absl::SimpleAtoi(first, &count))
          throw invalid_argument("expected numbers, got \"", text.substr(0, 100), "\"");
        const std::string bytes = bytes_from(text, str_cat(count, " numbers"));
        if (bytes.size() / sizeof(double) != count || bytes.size() % sizeof(double) != 0) {
          throw invalid_argument("expected ", count, " numbers, got ", bytes.size(), " bytes");
        }
        std::vector<double> values(count);
        if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
        *numbers = std::move(values);
      }) {}

CheckpointObject::CheckpointObject(at::Tensor* tensor)
    : save_([tensor] {
        constexpr size_t kMost = 1 << 20;  // bytes; it is part of the index
        if (!tensor->defined() || tensor->nbytes() > kMost) {
          throw invalid_argument("expected a tensor of at most ", kMost, " bytes, got ",
                                 tensor->defined() ? spec_of(*tensor).to_string() : "an undefined one",
                                 "; make it a Variable");
        }
        PlainTensors plain;
        const at::Tensor here = tensor->detach().to(at::kCPU).contiguous();
        return with_bytes(spec_of(here).to_string(),
                          {static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
      }),
      restore_([tensor](const std::string& text) {
        if (!tensor->defined()) throw invalid_argument("expected a tensor to give a value, got an undefined one");
        PlainTensors plain;
        at::Tensor here = at::empty_like(tensor->detach(), at::TensorOptions(at::kCPU), at::MemoryFormat::Contiguous);
        const std::string bytes = bytes_from(text, spec_of(here).to_string());
        if (bytes.size() != here.nbytes()) {
          throw invalid_argument("expected ", here.nbytes(), " bytes, got ", bytes.size());
        }
        if (!bytes.empty()) std::memcpy(here.mutable_data_ptr(), bytes.data(), bytes.size());
        *tensor = here.to(tensor->device());
      }) {}

CheckpointObject::CheckpointObject(Iterator* iterator, Dataset dataset)
    : save_([iterator] { return iterator->position(); }),
      restore_([iterator, dataset = std::move(dataset)](const std::string& text) {
        Iterator goes_on = dataset.from(text).iterator();
        goes_on.shared_by = iterator->shared_by;  // replicas take their rows of its batches, as before
        *iterator = std::move(goes_on);
      }) {}

}  // namespace muster
