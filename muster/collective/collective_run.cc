#include "muster/collective/collective_run.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "muster/base/status.h"
#include "muster/collective/packs.h"
#include "muster/collective/reduce_by_machine.h"
#include "muster/collective/reduce_by_reading.h"
#include "muster/collective/sums_in_order.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

// What the tasks must agree on. Those that gather may have different numbers of rows.
std::string describe_call(const CollectiveCall& call, const std::vector<at::Tensor>& values) {
  std::string words = call.to_string();
  str_append(words, " of ", values.size(), " tensors:");
  for (const at::Tensor& value : values) {
    TensorSpec spec = spec_of(value);
    if (call.kind == CollectiveKind::kAllGather) spec.sizes[0] = -1;
    str_append(words, " ", spec.to_string());
  }
  return words;
}

constexpr size_t kAlignment = 16;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The first message: the words, and what is small enough to go with them.
at::Tensor first_message(const std::string& words, const std::vector<Pack>& inlined) {
  size_t bytes = aligned(sizeof(uint64_t) + words.size());
  for (const Pack& pack : inlined) bytes += aligned(pack.flat.nbytes());
  at::Tensor message = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  auto* to = message.mutable_data_ptr<uint8_t>();
  const uint64_t length = words.size();
  std::memcpy(to, &length, sizeof length);
  std::memcpy(to + sizeof length, words.data(), words.size());
  size_t place = aligned(sizeof length + words.size());
  for (const Pack& pack : inlined) {
    const at::Tensor flat = pack.flat.contiguous();
    if (flat.nbytes() > 0) std::memcpy(to + place, flat.const_data_ptr(), flat.nbytes());
    place += aligned(flat.nbytes());
  }
  return message;
}

// What a task has said, if it is what this one says.
void check_agreement(const at::Tensor& message, const std::string& words, int from, const Mail& mail) {
  uint64_t length = 0;
  if (message.scalar_type() != at::kByte || message.numel() < static_cast<int64_t>(sizeof length)) {
    throw internal(mail.name_of(from), " has sent what is no message of a collective");
  }
  const auto* bytes = message.const_data_ptr<uint8_t>();
  std::memcpy(&length, bytes, sizeof length);
  length = std::min<uint64_t>(length, message.numel() - sizeof length);
  const std::string theirs(reinterpret_cast<const char*>(bytes) + sizeof length, length);
  if (theirs == words) return;
  throw invalid_argument("the tasks of a group are at different calls: ", mail.name_of(mail.rank()), " is at ", words,
                         "; ", mail.name_of(from), " is at ", theirs);
}

enum class Whose { kOwn, kOfCaller };  // who may write to it before the others have fetched it

void leave_for_all(Mail& mail, int64_t what, const at::Tensor& tensor, Whose whose) {
  at::Tensor kept;
  for (int rank = 0; rank < mail.size(); ++rank) {
    if (rank == mail.rank() || mail.send(rank, what, tensor)) continue;
    if (!kept.defined()) kept = whose == Whose::kOfCaller ? tensor.clone() : tensor;
    mail.leave(rank, what, kept);
  }
}

// By rank: what this one has, and the answers of the others.
std::vector<at::Tensor> of_all(Mail& mail, const at::Tensor& own, const std::vector<size_t>& questions) {
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < mail.size(); ++rank) {
    by_rank.push_back(rank == mail.rank() ? own : mail.wait(questions[rank]));
  }
  return by_rank;
}

// Everybody says what it does. Returns the messages.
std::vector<at::Tensor> agree(const std::string& words, const std::vector<Pack>& inlined, Mail& mail) {
  std::vector<at::Tensor> messages(mail.size());
  messages[mail.rank()] = first_message(words, inlined);
  leave_for_all(mail, kFirstMessage, messages[mail.rank()], Whose::kOwn);
  for (int rank = 0; rank < mail.size(); ++rank) {
    if (rank == mail.rank()) continue;
    messages[rank] = mail.wait(mail.first_question(rank));
    check_agreement(messages[rank], words, rank, mail);
  }
  return messages;
}

// What stands at that place in the messages of all, which is like what this one has told.
std::vector<at::Tensor> inlined_in(const std::vector<at::Tensor>& messages, size_t place, const at::Tensor& like) {
  const auto bytes = static_cast<int64_t>(like.nbytes());
  std::vector<at::Tensor> by_rank;
  for (const at::Tensor& message : messages) {
    if (message.numel() < static_cast<int64_t>(place) + bytes) throw internal("a message of a collective is too short");
    at::Tensor part = message.narrow(0, static_cast<int64_t>(place), bytes);
    // A tensor that came over the wire may begin anywhere.
    if (reinterpret_cast<uintptr_t>(part.const_data_ptr()) % kAlignment != 0) part = part.clone();
    by_rank.push_back(part.view(like.scalar_type()));
  }
  return by_rank;
}

// Everybody has sent all it has: each sums it up for itself.
std::vector<at::Tensor> reduce_small(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                     const std::vector<Pack>& packs, const Machines& machines, Mail& mail) {
  const std::string words = describe_call(call, values);
  const std::vector<at::Tensor> messages = agree(words, packs, mail);
  std::vector<at::Tensor> results(values.size());
  size_t place = aligned(sizeof(uint64_t) + words.size());
  for (const Pack& pack : packs) {
    unpack(pack, reduced(call.reduction, inlined_in(messages, place, pack.flat), machines), values, results);
    place += aligned(pack.flat.nbytes());
  }
  return results;
}

// The same for what is too large to be copied into a message.
std::vector<at::Tensor> reduce_whole(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                     const std::vector<Pack>& packs, const Machines& machines, Mail& mail) {
  std::vector<std::vector<size_t>> questions;
  for (size_t i = 0; i < packs.size(); ++i) {
    questions.push_back(ask_all(mail, part_to_sum(static_cast<int64_t>(i))));
    const Whose whose = packs[i].members.size() == 1 ? Whose::kOfCaller : Whose::kOwn;
    leave_for_all(mail, part_to_sum(static_cast<int64_t>(i)), packs[i].flat, whose);
  }
  agree(describe_call(call, values), {}, mail);
  std::vector<at::Tensor> results(values.size());
  for (size_t i = 0; i < packs.size(); ++i) {
    unpack(packs[i], reduced(call.reduction, of_all(mail, packs[i].flat, questions[i]), machines), values, results);
  }
  return results;
}

// Each task sums up a piece of each part for all, so that every byte travels to one task and the sum back from it: as
// many as around a ring, in two steps.
std::vector<at::Tensor> reduce_parts(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                     const std::vector<Pack>& packs, Mail& mail) {
  const int size = mail.size(), here = mail.rank();
  std::vector<at::Tensor> given, made;
  for (const Pack& pack : packs) {
    given.push_back(pack.flat.contiguous());
    made.push_back(at::empty_like(given.back()));
  }
  std::vector<Part> parts = cut(given, size, kChunkBytes);
  for (Part& part : parts) {
    part.to_sum = ask_all(mail, part_to_sum(part.number));
    part.summed.resize(size);
    for (int rank = 0; rank < size; ++rank) {
      if (rank != here) part.summed[rank] = mail.ask(rank, part_summed(part.number), part.pieces(made, rank, 1));
    }
  }
  // Without a copy: who sends its sum of a part has got this rank's piece of it, and this call waits for all sums.
  const auto send_pieces = [&](const Part& part) {
    for (int rank = 0; rank < size; ++rank) {
      if (rank == here) continue;
      const at::Tensor piece = part.pieces(given, rank, 1);
      if (!mail.send(rank, part_to_sum(part.number), piece)) mail.leave(rank, part_to_sum(part.number), piece);
    }
  };
  const auto sum_up = [&](const Part& part) {
    at::Tensor sum = part.pieces(made, here, 1);
    reduce_into(sum, call.reduction, of_all(mail, part.pieces(given, here, 1), part.to_sum));
    leave_for_all(mail, part_summed(part.number), sum, Whose::kOfCaller);  // who may write to the result soon
  };
  const auto take_sums = [&](const Part& part) {
    for (int rank = 0; rank < size; ++rank) {
      if (rank != here) put_in_place(mail.wait(part.summed[rank]), part.pieces(made, rank, 1));
    }
  };
  const size_t ahead = std::min(kPartsAhead, parts.size());
  for (size_t i = 0; i < ahead; ++i) send_pieces(parts[i]);
  agree(describe_call(call, values), {}, mail);  // what is on its way meanwhile is only summed then
  for (size_t i = 0; i < parts.size() + kPartsBehind; ++i) {
    if (i + ahead < parts.size()) send_pieces(parts[i + ahead]);
    if (i < parts.size()) sum_up(parts[i]);
    if (i >= kPartsBehind) take_sums(parts[i - kPartsBehind]);
  }
  return unpacked(packs, made, values);
}

std::vector<at::Tensor> all_gather(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  std::vector<std::vector<size_t>> questions;
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t what = part_to_sum(static_cast<int64_t>(i));
    questions.push_back(ask_all(mail, what));
    own.push_back(values[i].to(at::kCPU).contiguous());
    leave_for_all(mail, what, own[i], Whose::kOfCaller);
  }
  agree(describe_call(call, values), {}, mail);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    results.push_back(at::cat(of_all(mail, own[i], questions[i])).to(values[i].device()));
  }
  return results;
}

// Each rank gets its rows of what every rank has: to put them after each other, or to sum them up.
std::vector<at::Tensor> exchange(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  std::vector<std::vector<size_t>> questions;
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t what = part_to_sum(static_cast<int64_t>(i)), rows = values[i].size(0) / mail.size();
    questions.push_back(ask_all(mail, what));
    const at::Tensor whole = values[i].to(at::kCPU).contiguous();
    own.push_back(whole.narrow(0, mail.rank() * rows, rows));
    for (int rank = 0; rank < mail.size(); ++rank) {
      const at::Tensor share = whole.narrow(0, rank * rows, rows);
      if (rank != mail.rank() && !mail.send(rank, what, share)) mail.leave(rank, what, share.clone());
    }
  }
  agree(describe_call(call, values), {}, mail);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::vector<at::Tensor> by_rank = of_all(mail, own[i], questions[i]);
    const bool sums = call.kind == CollectiveKind::kReduceScatter;
    results.push_back((sums ? reduced(call.reduction, by_rank) : at::cat(by_rank)).to(values[i].device()));
  }
  return results;
}

// The root has what all send it, and sums it up.
std::vector<at::Tensor> reduce_at_root(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  const int root = static_cast<int>(call.root);
  const bool here = mail.rank() == root;
  const std::vector<Pack> packs = packed(values);
  std::vector<std::vector<size_t>> questions;
  for (size_t i = 0; i < packs.size(); ++i) {
    const int64_t what = part_to_sum(static_cast<int64_t>(i));
    if (here) {
      questions.push_back(ask_all(mail, what));
    } else if (const at::Tensor flat = packs[i].flat.contiguous(); !mail.send(root, what, flat)) {
      mail.leave(root, what, packs[i].members.size() == 1 ? flat.clone() : flat);  // the caller's own memory
    }
  }
  agree(describe_call(call, values), {}, mail);
  std::vector<at::Tensor> results(values.size());
  for (size_t i = 0; here && i < packs.size(); ++i) {
    unpack(packs[i], reduced(call.reduction, of_all(mail, packs[i].flat, questions[i])), values, results);
  }
  for (size_t i = 0; !here && i < values.size(); ++i) results[i] = at::zeros_like(values[i]);
  return results;
}

std::vector<at::Tensor> broadcast(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  const int root = static_cast<int>(call.root);
  std::vector<size_t> questions;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t what = part_to_sum(static_cast<int64_t>(i));
    if (mail.rank() == root) {
      leave_for_all(mail, what, values[i].to(at::kCPU).contiguous(), Whose::kOfCaller);
    } else {
      questions.push_back(mail.ask(root, what));
    }
  }
  agree(describe_call(call, values), {}, mail);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor of_root = mail.rank() == root ? values[i] : mail.wait(questions[i]);
    results.push_back(of_root.to(values[i].device()).clone());
  }
  return results;
}

}  // namespace

void check_values(const CollectiveCall& call, const std::vector<at::Tensor>& values, int size) {
  const bool reduces = call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter ||
                       call.kind == CollectiveKind::kReduce;
  const bool divides = call.kind == CollectiveKind::kReduceScatter || call.kind == CollectiveKind::kAllToAll;
  const bool has_root = call.kind == CollectiveKind::kBroadcast || call.kind == CollectiveKind::kReduce;
  if (has_root && (call.root < 0 || call.root >= size)) {
    throw invalid_argument(call.to_string(), ": the group has ", size, " ranks");
  }
  if (call.kind == CollectiveKind::kBarrier && !values.empty()) {
    throw invalid_argument(call.to_string(), " of ", values.size(), " tensors, expected none");
  }
  for (const at::Tensor& value : values) {
    if (!value.defined()) throw invalid_argument(call.to_string(), ": a tensor is not defined");
    if ((call.kind == CollectiveKind::kAllGather || divides) && value.dim() == 0) {
      throw invalid_argument(call.to_string(), ": a scalar has no rows; unsqueeze it");
    }
    if (divides && value.size(0) % size != 0) {
      throw invalid_argument(call.to_string(), ": ", spec_of(value).to_string(), " has no rows for ", size,
                             " ranks alike");
    }
    if (reduces && call.reduction == Reduction::kSum && value.scalar_type() == at::kBool) {
      throw invalid_argument(call.to_string(), " of bool: min is whether all are true, max whether any is");
    }
  }
}

std::vector<size_t> ask_all(Mail& mail, int64_t what) {
  std::vector<size_t> questions(mail.size());
  for (int rank = 0; rank < mail.size(); ++rank) {
    if (rank != mail.rank()) questions[rank] = mail.ask(rank, what);
  }
  return questions;
}

void tell_all(Mail& mail, int64_t what) { leave_for_all(mail, what, at::empty({0}, at::kByte), Whose::kOwn); }

std::vector<at::Tensor> agree_and_tell(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                       const at::Tensor& told, Mail& mail) {
  const std::string words = describe_call(call, values);
  const Pack pack{.flat = told.flatten()};
  return inlined_in(agree(words, {pack}, mail), aligned(sizeof(uint64_t) + words.size()), pack.flat);
}

void agree_on(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  agree(describe_call(call, values), {}, mail);
}

void agree_on_gpus(const CollectiveCall& call, const std::vector<at::Tensor>& values, Mail& mail) {
  agree(describe_call(call, values) + " from GPU to GPU", {}, mail);
}

std::vector<at::Tensor> run_collective(const CollectiveCall& call, std::vector<at::Tensor> values,
                                       const AllReduceSizes& sizes, const Machines& machines, Mail& mail) {
  c10::AutoGradMode no_gradients(false);
  // What is sent is memory, and says nothing of elements that are to be taken otherwise than they are.
  for (at::Tensor& value : values) value = value.resolve_conj().resolve_neg();
  switch (call.kind) {
    case CollectiveKind::kAllGather: return all_gather(call, values, mail);
    case CollectiveKind::kBroadcast: return broadcast(call, values, mail);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll: return exchange(call, values, mail);
    case CollectiveKind::kReduce: return reduce_at_root(call, values, mail);
    case CollectiveKind::kBarrier: agree(describe_call(call, {}), {}, mail); return {};
    case CollectiveKind::kAllReduce: break;
  }
  const std::vector<Pack> packs = packed(values);
  switch (sizes.way_for(bytes_of(packs))) {
    case AllReduceWay::kInFirstMessage: return reduce_small(call, values, packs, machines, mail);
    case AllReduceWay::kWhole: return reduce_whole(call, values, packs, machines, mail);
    case AllReduceWay::kInParts: break;
  }
  if (MemoryOfOthers* memory = mail.memory()) return reduce_by_reading(call, values, packs, mail, *memory);
  if (machines.several()) return reduce_by_machine(call, values, packs, machines, mail);
  return reduce_parts(call, values, packs, mail);
}

}  // namespace muster
