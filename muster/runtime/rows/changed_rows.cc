#include "muster/runtime/rows/changed_rows.h"

#include <utility>

#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

// The memory of an ordinary tensor, with the rows of it that have changed.
struct NotedMemory {
  at::DataPtr memory;
  std::shared_ptr<ChangedRows> changed;

  static void destroy(void* noted) { delete static_cast<NotedMemory*>(noted); }
};

NotedMemory* noted_memory(const at::Tensor& table) {
  if (!table.is_cpu() || !table.has_storage()) return nullptr;
  return table.storage().data_ptr().cast_context<NotedMemory>(&NotedMemory::destroy);
}

}  // namespace

void ChangedRows::add(const int64_t* rows, int64_t count) {
  absl::MutexLock lock(&mu_);
  for (Save& save : saves_) {
    if (save.since.all) continue;
    for (int64_t i = 0; i < count; ++i) save.since.rows.add(rows[i]);
  }
}

void ChangedRows::add_all() {
  absl::MutexLock lock(&mu_);
  for (Save& save : saves_) save.since.all = true;
}

std::optional<ChangedRows::Since> ChangedRows::begin_save(uint64_t owner, uint64_t base, uint64_t mark) {
  absl::MutexLock lock(&mu_);
  std::optional<Since> since;
  for (const Save& save : saves_) {
    if (save.owner == owner && save.mark == base) since = save.since;
  }
  saves_.remove_if([&](const Save& save) { return save.owner == owner && save.mark != base; });
  saves_.push_back({owner, mark, {.rows = RowSet(rows_)}});
  if (saves_.size() > kMost) saves_.pop_front();
  return since;
}

void ChangedRows::note_save(uint64_t owner, uint64_t mark, int64_t differences, int64_t difference_bytes,
                            int64_t whole_bytes) {
  absl::MutexLock lock(&mu_);
  for (Save& save : saves_) {
    if (save.owner != owner || save.mark != mark) continue;
    save.since.differences = differences;
    save.since.difference_bytes = difference_bytes;
    save.since.whole_bytes = whole_bytes;
  }
}

ChangedRows* ChangedRows::of(const at::Tensor& table) {
  if (const RowTable* on_demand = RowTable::of(table)) return on_demand->changed().get();
  const NotedMemory* noted = noted_memory(table);
  return noted == nullptr ? nullptr : noted->changed.get();
}

void ChangedRows::attach(const at::Tensor& table, std::shared_ptr<ChangedRows> changed) {
  if (RowTable* on_demand = RowTable::of(table)) return on_demand->set_changed(std::move(changed));
  if (NotedMemory* noted = noted_memory(table)) {
    noted->changed = std::move(changed);
    return;
  }
  c10::StorageImpl* storage = table.storage().unsafeGetStorageImpl();
  auto* noted = new NotedMemory{{}, std::move(changed)};  // owned by the storage from now on
  at::DataPtr with_notes(storage->mutable_data(), noted, &NotedMemory::destroy, storage->device());
  noted->memory = storage->set_data_ptr(std::move(with_notes));
}

}  // namespace muster
