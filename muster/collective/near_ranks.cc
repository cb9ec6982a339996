#include "muster/collective/near_ranks.h"

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "muster/collective/rows_of_all.h"
#include "muster/near/near_socket.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

constexpr int64_t kLongestName = 64;

at::Tensor row_of(const std::string& name) {
  at::Tensor row = at::zeros({kLongestName}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), name.data(), std::min<size_t>(name.size(), kLongestName - 1));
  return row;
}

std::string name_in(const at::Tensor& row) { return {static_cast<const char*>(row.const_data_ptr())}; }

}  // namespace

std::vector<std::shared_ptr<NearPost>> meet_near_ranks(Collectives& group, const std::vector<bool>& wanted,
                                                       uint64_t token) {
  std::string name = absl::StrCat("muster-", absl::Hex(random_id()), absl::Hex(random_id()));
  const Descriptor listener = near_memory_wanted() ? listen_at(name) : Descriptor();
  if (!listener) name.clear();
  const at::Tensor names = rows_of_all(group, row_of(name), "names of sockets");

  // Each calls those before it. Nobody waits at a socket: when all have said that they are through, all is there.
  std::vector<std::optional<PostCaller>> callers(group.size());
  for (int rank = 0; rank < group.rank(); ++rank) {
    if (const std::string theirs = name_in(names[rank]); listener && !theirs.empty() && wanted[rank]) {
      callers[rank] = call_at(theirs, token, group.rank());
    }
  }
  group.run({.kind = CollectiveKind::kBarrier, .purpose = "all have called"}, {});
  std::vector<std::shared_ptr<NearPost>> posts(group.size());
  for (auto& [rank, post] : answer_callers(listener, token)) {
    if (rank > group.rank() && rank < group.size()) posts[rank] = std::move(post);
  }
  group.run({.kind = CollectiveKind::kBarrier, .purpose = "all have answered"}, {});
  at::Tensor met = at::zeros({group.size()}, at::kByte);
  for (int rank = 0; rank < group.rank(); ++rank) {
    if (!callers[rank]) continue;
    posts[rank] = finish(*std::move(callers[rank]), token);
    met[rank] = posts[rank] ? 1 : 0;
  }
  const at::Tensor met_by_all = rows_of_all(group, met, "who is near");
  for (int rank = group.rank() + 1; rank < group.size(); ++rank) {
    if (met_by_all[rank][group.rank()].item<uint8_t>() == 0) posts[rank] = nullptr;
  }
  return posts;
}

}  // namespace muster
