// Finds the value of a program that a tensor is.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/container/flat_hash_map.h>

#include <functional>
#include <optional>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// A tensor is known by the memory that it shows (storage, offset, sizes, strides, type), not by its TensorImpl:
// autograd saves shallow copies, which are the same value. The table keeps weak references to storages: the memory is
// freed as usual, but the address is not given to another storage while the table lives.
class ValueTable {
 public:
  // Identifies the storage of a tensor; a tensor without storage (sparse) is its own.
  static const void* storage_of(const at::Tensor& tensor);

  void bind(const at::Tensor& tensor, ValueId value);
  std::optional<ValueId> find(const at::Tensor& tensor) const;
  // Some value of the same storage and element type, of which `tensor` is a view, and where it begins in the storage.
  struct Sharing {
    ValueId value;
    int64_t offset;
  };
  std::optional<Sharing> find_sharing(const at::Tensor& tensor) const;
  bool knows_storage(const at::Tensor& tensor) const { return storages_.contains(storage_of(tensor)); }

  // Whether the memory holds the same elements in every run, because constants alone went into it. Not so at first.
  bool constant(const at::Tensor& tensor) const;
  void set_constant(const at::Tensor& tensor, bool constant);  // REQUIRES: its storage is known
  // Whether all replicas of a step have the same elements there. Not so at first, unless they are constant.
  bool alike(const at::Tensor& tensor) const;
  void set_alike(const at::Tensor& tensor, bool alike);  // likewise

  // A value that depends on data and whose memory somebody still holds, for which `counts` is true; nothing if there is
  // none.
  std::optional<TensorSpec> still_held(const std::function<bool(const c10::StorageImpl*)>& counts) const;

  // The storages of these tensors are unknown again.
  void forget(const std::vector<at::Tensor>& tensors);
  // Takes over the storages of `other` (not its values).
  void absorb_storages(ValueTable&& other);

 private:
  struct Key {
    const void* storage;
    int64_t offset;
    int8_t type;
    bool conjugated;
    bool negated;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    bool operator==(const Key&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const Key& k) {
      return H::combine(std::move(h), k.storage, k.offset, k.type, k.conjugated, k.negated, k.sizes, k.strides);
    }
  };
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    at::Tensor strong{};  // only for tensors without storage
    absl::flat_hash_map<int8_t, Sharing> by_type{};
    bool constant = false, alike = false;
  };
  static Key key_of(const at::Tensor& tensor);

  absl::flat_hash_map<Key, ValueId> values_;
  absl::flat_hash_map<const void*, Storage> storages_;
};

}  // namespace muster
