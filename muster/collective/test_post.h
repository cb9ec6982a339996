// For tests: ranks of this process that leave each other letters in one place.
#pragma once

#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/collective/collective_run.h"

namespace muster::testing_support {

// What all ranks have sent each other, and how much of it went from machine to machine.
class Post {
 public:
  explicit Post(Machines machines, bool has_room = true)
      : has_room(has_room), machines_(std::move(machines)), bytes_(machines_.ranks.size()) {}

  const bool has_room;  // false: all messages are left
  const Machines& machines() const { return machines_; }
  int size() const { return static_cast<int>(machines_.of_rank.size()); }
  void put(int from, int to, int64_t what, const at::Tensor& tensor) {
    absl::MutexLock lock(&mu_);
    const auto machine = [&](int rank) { return machines_.of_rank[static_cast<size_t>(rank)]; };
    if (what != kFirstMessage && machine(from) != machine(to)) {
      bytes_[static_cast<size_t>(machine(from))] += static_cast<int64_t>(tensor.nbytes());
    }
    EXPECT_TRUE(letters_.emplace(std::tuple(from, to, what), tensor.clone()).second) << "sent twice";
  }
  void leave(int from, int64_t what, at::Tensor tensor) {
    absl::MutexLock lock(&mu_);
    left_[{from, what}].push_back(std::move(tensor));
  }
  // The tensors that a rank has left under a number, one of each memory.
  size_t copies_left(int from, int64_t what) {
    absl::MutexLock lock(&mu_);
    std::set<const void*> memory;
    for (const at::Tensor& tensor : left_[{from, what}]) memory.insert(tensor.const_data_ptr());
    return memory.size();
  }
  at::Tensor take(int from, int to, int64_t what) {
    absl::MutexLock lock(&mu_);
    const std::tuple key(from, to, what);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return letters_.contains(key); };
    mu_.Await(absl::Condition(&there));
    at::Tensor tensor = letters_[key];
    letters_.erase(key);
    return tensor;
  }
  std::vector<int64_t> bytes() {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }
  size_t unread() {
    absl::MutexLock lock(&mu_);
    return letters_.size();
  }

 private:
  const Machines machines_;
  absl::Mutex mu_;
  std::map<std::tuple<int, int, int64_t>, at::Tensor> letters_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, int64_t>, std::vector<at::Tensor>> left_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> bytes_ ABSL_GUARDED_BY(mu_);  // that each machine has sent to others
};

class RankOfPost : public Mail {
 public:
  RankOfPost(Post& post, int rank) : post_(post), rank_(rank) {
    for (int from = 0; from < size(); ++from) ask(from, kFirstMessage, {});
  }
  int rank() const override { return rank_; }
  int size() const override { return post_.size(); }
  // Every other message is left, as where there is room for some.
  bool send(int to, int64_t what, const at::Tensor& tensor) override {
    if (what != kFirstMessage && (!post_.has_room || ++sent_ % 2 == 0)) return false;
    post_.put(rank_, to, what, tensor);
    return true;
  }
  void leave(int to, int64_t what, at::Tensor tensor) override {
    post_.put(rank_, to, what, tensor);
    post_.leave(rank_, what, std::move(tensor));
  }
  size_t ask(int from, int64_t what, at::Tensor) override {
    questions_.emplace_back(from, what);
    return questions_.size() - 1;
  }
  size_t first_question(int from) override { return static_cast<size_t>(from); }
  at::Tensor wait(size_t question) override {
    return post_.take(questions_[question].first, rank_, questions_[question].second);
  }
  std::string name_of(int rank) const override { return str_cat("rank ", rank); }

 private:
  Post& post_;
  const int rank_;
  int sent_ = 0;
  std::vector<std::pair<int, int64_t>> questions_;
};

// `of_rank`: the machine of each.
inline Machines machines_of(const std::vector<int>& of_rank) {
  const int64_t size = static_cast<int64_t>(of_rank.size());
  at::Tensor near = torch::zeros({size, size});
  for (int64_t a = 0; a < size; ++a) {
    for (int64_t b = 0; b < size; ++b) near[a][b] = of_rank[a] == of_rank[b] ? 1 : 0;
  }
  return Machines::of(near);
}

inline at::Tensor numbers(int rank, int64_t count, at::ScalarType type) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 1);
  return torch::randn({count}, generator).mul(10).to(type);
}

// Each rank on a thread of its own.
template <typename Rank>
void on_each_rank(Post& post, const std::function<void(Rank&)>& member) {
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < post.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      Rank mail(post, rank);
      member(mail);
    });
  }
}

// By rank, what each fails with: none, if it does not.
template <typename Rank = RankOfPost>
std::vector<std::string> failures_of(Post& post, const std::function<void(Rank&)>& member) {
  std::vector<std::string> failures(static_cast<size_t>(post.size()));
  on_each_rank<Rank>(post, [&](Rank& mail) {
    try {
      member(mail);
    } catch (const Error& error) {
      failures[static_cast<size_t>(mail.rank())] = error.status().message();
    }
  });
  return failures;
}

// By rank, what each has in the end.
template <typename Rank = RankOfPost>
std::vector<std::vector<at::Tensor>> sums_of(Post& post, const CollectiveCall& call, AllReduceWay way,
                                             const std::function<std::vector<at::Tensor>(int rank)>& values) {
  std::vector<std::vector<at::Tensor>> sums(static_cast<size_t>(post.size()));
  on_each_rank<Rank>(post, [&](Rank& mail) {
    sums[static_cast<size_t>(mail.rank())] =
        run_collective(call, values(mail.rank()), AllReduceSizes::always(way), post.machines(), mail);
  });
  return sums;
}

}  // namespace muster::testing_support
