#include "muster/collective/reduce_by_machine.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "muster/collective/sums_in_order.h"

namespace muster {
namespace {

// As many ranks of every machine as the smallest one has lead a lane each. The leader of a lane adds up what the ranks
// of its machine have of it; the leaders of one lane on all machines add that up, each a share of it, and give the lane
// to their machines. So each machine sends, and gets, what each rank of a group with one rank a machine would. In each
// round, what is waited for was sent in one before: no two can wait for each other.
class ReductionByMachine {
 public:
  ReductionByMachine(const CollectiveCall& call, const std::vector<Pack>& packs, const Machines& machines, Mail& mail)
      : call_(call),
        mail_(mail),
        machine_(machines.of_rank[mail.rank()]),
        inside_(machines.ranks[machine_]),
        count_(static_cast<int>(machines.ranks.size())),
        lanes_(machines.lanes()),
        lane_(machines.place_of(mail.rank())) {
    for (const Pack& pack : packs) {
      given_.push_back(pack.flat.contiguous());
      made_.push_back(at::empty_like(given_.back()));
    }
    // What the ranks of a machine give each other is a whole lane.
    parts_ = cut(given_, lanes_ * count_, kChunkBytes / count_);
    partial_.resize(parts_.size());
    for (int machine = 0; leads() && machine < count_; ++machine) peers_.push_back(machines.ranks[machine][lane_]);
    for (Part& part : parts_) ask(part);
  }

  // Returns the sums, by pack.
  const std::vector<at::Tensor>& run(const std::vector<at::Tensor>& values) {
    const size_t ahead = std::min(kPartsAhead, parts_.size());
    for (size_t i = 0; i < ahead; ++i) give(parts_[i]);
    agree_on(call_, values, mail_);  // what is on its way meanwhile is only summed then
    constexpr size_t kStages = 4;
    for (size_t round = 0; round + 1 < parts_.size() + kStages; ++round) {
      const auto at = [&](size_t behind) { return round >= behind && round - behind < parts_.size(); };
      if (round + ahead < parts_.size()) give(parts_[round + ahead]);
      if (leads() && at(0)) sum_inside(parts_[round], partial_[round]);
      if (leads() && at(1)) sum_across(parts_[round - 1], partial_[round - 1]);
      if (leads() && at(2)) share_inside(parts_[round - 2]);
      if (at(3)) take_lanes(parts_[round - 3]);
    }
    return made_;
  }

 private:
  bool leads() const { return lane_ < lanes_; }
  at::Tensor lane_of(const std::vector<at::Tensor>& flats, const Part& part, int lane) const {
    return part.pieces(flats, int64_t{lane} * count_, count_);
  }
  // Of this rank's lane: what that machine sums up for all.
  at::Tensor share_of(const Part& part, int machine) const {
    return part.pieces(made_, int64_t{lane_} * count_ + machine, 1);
  }

  void ask(Part& part) {
    part.to_sum.resize(mail_.size());
    part.summed.resize(mail_.size());
    for (int lane = 0; lane < lanes_; ++lane) {
      if (const int leader = inside_[lane]; lane != lane_) {
        part.summed[leader] = mail_.ask(leader, part_summed(part.number), lane_of(made_, part, lane));
      }
    }
    if (!leads()) return;
    for (const int rank : inside_) {
      if (rank != mail_.rank()) part.to_sum[rank] = mail_.ask(rank, part_to_sum(part.number));
    }
    for (int machine = 0; machine < count_; ++machine) {
      if (machine == machine_) continue;
      part.to_sum[peers_[machine]] = mail_.ask(peers_[machine], part_to_sum(part.number));
      part.summed[peers_[machine]] = mail_.ask(peers_[machine], part_summed(part.number), share_of(part, machine));
    }
  }
  // Without a copy: the sums that this call waits for are made of all of it.
  void give(const Part& part) {
    for (int lane = 0; lane < lanes_; ++lane) {
      if (lane == lane_) continue;
      const at::Tensor own = lane_of(given_, part, lane);
      if (!mail_.send(inside_[lane], part_to_sum(part.number), own)) {
        mail_.leave(inside_[lane], part_to_sum(part.number), own);
      }
    }
  }
  void sum_inside(const Part& part, at::Tensor& partial) {
    std::vector<at::Tensor> by_rank;
    for (const int rank : inside_) {
      by_rank.push_back(rank == mail_.rank() ? lane_of(given_, part, lane_) : mail_.wait(part.to_sum[rank]));
    }
    partial = reduced_inside(call_.reduction, by_rank);
    for (int machine = 0; machine < count_; ++machine) {
      if (machine == machine_) continue;
      const at::Tensor share = slice_of(partial, machine * part.piece, part.piece);
      if (!mail_.send(peers_[machine], part_to_sum(part.number), share)) {
        mail_.leave(peers_[machine], part_to_sum(part.number), share);
      }
    }
  }
  void sum_across(const Part& part, at::Tensor& partial) {
    std::vector<at::Tensor> by_machine;
    for (int machine = 0; machine < count_; ++machine) {
      by_machine.push_back(machine == machine_ ? slice_of(partial, machine * part.piece, part.piece)
                                               : mail_.wait(part.to_sum[peers_[machine]]));
    }
    at::Tensor sum = share_of(part, machine_);
    reduce_into(sum, call_.reduction, by_machine);
    give_away(peers_, part, sum);
    partial.reset();
  }
  void share_inside(const Part& part) {
    for (int machine = 0; machine < count_; ++machine) {
      if (machine != machine_) put_in_place(mail_.wait(part.summed[peers_[machine]]), share_of(part, machine));
    }
    give_away(inside_, part, lane_of(made_, part, lane_));
  }
  void take_lanes(const Part& part) {
    for (int lane = 0; lane < lanes_; ++lane) {
      if (lane != lane_) put_in_place(mail_.wait(part.summed[inside_[lane]]), lane_of(made_, part, lane));
    }
  }

  // To all of them but this one. The caller may write to the result soon.
  void give_away(const std::vector<int>& to, const Part& part, const at::Tensor& sum) {
    at::Tensor kept;
    for (const int rank : to) {
      if (rank == mail_.rank() || mail_.send(rank, part_summed(part.number), sum)) continue;
      if (!kept.defined()) kept = sum.clone();
      mail_.leave(rank, part_summed(part.number), kept);
    }
  }

  const CollectiveCall& call_;
  Mail& mail_;
  const int machine_;
  const std::vector<int>& inside_;        // the ranks of this machine
  const int count_;                       // of machines
  const int lanes_, lane_;                // lane_: of this rank, if there are so many
  std::vector<int> peers_;                // who leads the same lane, by machine; none if this rank leads none
  std::vector<at::Tensor> given_, made_;  // by pack
  std::vector<Part> parts_;
  std::vector<at::Tensor> partial_;  // by part: this machine's sum of this rank's lane, until it is part of that of all
};

}  // namespace

std::vector<at::Tensor> reduce_by_machine(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                          const std::vector<Pack>& packs, const Machines& machines, Mail& mail) {
  ReductionByMachine reduction(call, packs, machines, mail);
  return unpacked(packs, reduction.run(values), values);
}

}  // namespace muster
