#include "muster/collective/reduce_by_reading.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>

#include "muster/collective/sums_in_order.h"
#include "muster/near/near_memory.h"

namespace muster {
namespace {

constexpr int64_t kReadBytes = 512 << 10;      // at a time, of all: they are to stay in a core's cache until summed up
constexpr int64_t kLeastReadBytes = 64 << 10;  // of each: a call of the kernel costs as much as copying some of it
constexpr int64_t kElementsTogether = 64;      // so that no two ranks write to one line of the cache
constexpr int64_t kSummed = 1, kTaken = 2;     // what messages say: my share is there; I have got those of all
enum Place { kGiven, kMade, kPlaces };         // of a pack, as they are told

uint64_t address_of(const at::Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.const_data_ptr()); }

// The kernel copies nothing between processes of what a driver has mapped, as what is pinned for a GPU: not out of this
// process to itself either.
bool others_can_read(const at::Tensor& whole) {
  if (whole.nbytes() == 0) return true;
  char ends[2];
  const uint64_t begin = address_of(whole);
  return read_memory(::getpid(), {{&ends[0], begin, 1}, {&ends[1], begin + whole.nbytes() - 1, 1}});
}

class ReductionByReading {
 public:
  ReductionByReading(const CollectiveCall& call, const std::vector<Pack>& packs, Mail& mail, MemoryOfOthers& memory)
      : call_(call), mail_(mail), memory_(memory), here_(mail.rank()), size_(mail.size()) {
    for (const Pack& pack : packs) {
      const at::Tensor whole = pack.flat.contiguous();
      given_.push_back(others_can_read(whole) ? whole : whole.clone());
      made_.push_back(at::empty_like(given_.back()));
    }
  }

  const std::vector<at::Tensor>& run(const std::vector<at::Tensor>& values) {
    // Whatever goes wrong, others read neither memory that is gone nor, of what this rank has made, anything else.
    memory_.keep(given_, made_);
    const std::vector<size_t> summed = ask_all(mail_, kSummed), taken = ask_all(mail_, kTaken);
    places_ = agree_and_tell(call_, values, own_places(), mail_);
    for (size_t pack = 0; pack < made_.size(); ++pack) sum_share(pack);
    tell_all(mail_, kSummed);
    for (int next = 1; next < size_; ++next) {  // not all from the same one at the same time
      const int rank = (here_ + next) % size_;
      mail_.wait(summed[rank]);
      for (size_t pack = 0; pack < made_.size(); ++pack) {
        const Share share = share_of(pack, rank);
        if (share.count > 0) memory_.read(rank, there(rank, pack, kMade, share.first), at(made_, pack, share));
      }
    }
    // Others may be reading what this rank has made until they say that they are through. What it has given they have
    // summed up.
    tell_all(mail_, kTaken);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != here_) mail_.wait(taken[rank]);
    }
    memory_.check_none_has_failed();
    memory_.let_go();
    return made_;
  }

 private:
  struct Share {
    int64_t first, count;  // elements
  };
  Share share_of(size_t pack, int rank) const {
    const int64_t all = given_[pack].numel();
    const int64_t each = (all + size_ * kElementsTogether - 1) / (size_ * kElementsTogether) * kElementsTogether;
    const int64_t first = std::min(all, rank * each);
    return {first, std::min(each, all - first)};
  }
  static at::Tensor at(const std::vector<at::Tensor>& flats, size_t pack, const Share& share) {
    return flats[pack].narrow(0, share.first, share.count);
  }

  at::Tensor own_places() const {
    at::Tensor places = at::empty({static_cast<int64_t>(given_.size()), kPlaces}, at::kLong);
    auto* place = places.mutable_data_ptr<int64_t>();
    for (size_t pack = 0; pack < given_.size(); ++pack) {
      *place++ = static_cast<int64_t>(address_of(given_[pack]));
      *place++ = static_cast<int64_t>(address_of(made_[pack]));
    }
    return places;
  }
  // Where that rank has an element.
  uint64_t there(int rank, size_t pack, Place which, int64_t element) const {
    const auto begin = places_[rank].const_data_ptr<int64_t>()[pack * kPlaces + which];
    return static_cast<uint64_t>(begin) + static_cast<uint64_t>(element) * given_[pack].element_size();
  }

  void sum_share(size_t pack) {
    const Share share = share_of(pack, here_);
    const int64_t bytes = std::max(kReadBytes / std::max(size_ - 1, 1), kLeastReadBytes);
    const int64_t most = std::min<int64_t>(share.count, bytes / static_cast<int64_t>(given_[pack].element_size()));
    const at::Tensor read = at::empty({size_, most}, given_[pack].options());
    std::vector<at::Tensor> by_rank(size_);
    for (int64_t done = 0; done < share.count; done += most) {
      const Share next{share.first + done, std::min(most, share.count - done)};
      for (int rank = 0; rank < size_; ++rank) {
        by_rank[rank] = rank == here_ ? at(given_, pack, next) : read[rank].narrow(0, 0, next.count);
        if (rank != here_) memory_.read(rank, there(rank, pack, kGiven, next.first), by_rank[rank]);
      }
      at::Tensor sum = at(made_, pack, next);
      reduce_into(sum, call_.reduction, by_rank);
    }
  }

  const CollectiveCall& call_;
  Mail& mail_;
  MemoryOfOthers& memory_;
  const int here_, size_;
  std::vector<at::Tensor> given_, made_;  // by pack
  std::vector<at::Tensor> places_;        // by rank
};

}  // namespace

std::vector<at::Tensor> reduce_by_reading(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                          const std::vector<Pack>& packs, Mail& mail, MemoryOfOthers& memory) {
  ReductionByReading reduction(call, packs, mail, memory);
  return unpacked(packs, reduction.run(values), values);
}

}  // namespace muster
