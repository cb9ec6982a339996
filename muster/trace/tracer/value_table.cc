#include "muster/trace/tracer/value_table.h"

#include "muster/runtime/memory/tensors.h"

namespace muster {

const void* ValueTable::storage_of(const at::Tensor& tensor) {
  if (tensor.has_storage()) return tensor.storage().unsafeGetStorageImpl();
  return tensor.unsafeGetTensorImpl();
}

ValueTable::Key ValueTable::key_of(const at::Tensor& tensor) {
  Key key{storage_of(tensor),   0, static_cast<int8_t>(tensor.scalar_type()), tensor.is_conj(), tensor.is_neg(),
          tensor.sizes().vec(), {}};
  if (tensor.has_storage()) {
    key.offset = tensor.storage_offset();
    key.strides = tensor.strides().vec();
  }
  return key;
}

void ValueTable::bind(const at::Tensor& tensor, ValueId value) {
  Key key = key_of(tensor);
  auto it = storages_.find(key.storage);
  if (it == storages_.end()) {
    Storage storage{tensor.has_storage()
                        ? c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl())
                        : c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()),
                    tensor.has_storage() ? at::Tensor() : tensor};
    it = storages_.emplace(key.storage, std::move(storage)).first;
  }
  it->second.by_type[key.type] = {value, key.offset};
  values_[std::move(key)] = value;
}

std::optional<ValueId> ValueTable::find(const at::Tensor& tensor) const {
  auto it = values_.find(key_of(tensor));
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

std::optional<ValueTable::Sharing> ValueTable::find_sharing(const at::Tensor& tensor) const {
  auto storage = storages_.find(storage_of(tensor));
  if (storage == storages_.end()) return std::nullopt;
  auto value = storage->second.by_type.find(static_cast<int8_t>(tensor.scalar_type()));
  if (value == storage->second.by_type.end()) return std::nullopt;
  return value->second;
}

bool ValueTable::constant(const at::Tensor& tensor) const {
  auto storage = storages_.find(storage_of(tensor));
  return storage != storages_.end() && storage->second.constant;
}

void ValueTable::set_constant(const at::Tensor& tensor, bool constant) {
  storages_.at(storage_of(tensor)).constant = constant;
}

bool ValueTable::alike(const at::Tensor& tensor) const {
  auto storage = storages_.find(storage_of(tensor));
  return storage != storages_.end() && (storage->second.constant || storage->second.alike);
}

void ValueTable::set_alike(const at::Tensor& tensor, bool alike) { storages_.at(storage_of(tensor)).alike = alike; }

std::optional<TensorSpec> ValueTable::still_held(const std::function<bool(const c10::StorageImpl*)>& counts) const {
  for (const auto& [key, value] : values_) {
    auto it = storages_.find(key.storage);
    if (it == storages_.end() || it->second.constant || it->second.strong.defined()) continue;
    if (it->second.weak.use_count() == 0 || !counts(static_cast<const c10::StorageImpl*>(key.storage))) continue;
    return TensorSpec{dtype_of(static_cast<at::ScalarType>(key.type)), key.sizes};
  }
  return std::nullopt;
}

void ValueTable::forget(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) storages_.erase(storage_of(tensor));
}

void ValueTable::absorb_storages(ValueTable&& other) {
  for (auto& [address, storage] : other.storages_) {
    storage.by_type.clear();
    storages_.try_emplace(address, std::move(storage));
  }
}

}  // namespace muster
