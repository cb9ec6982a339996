#include "muster/rpc/lending_desk.h"

#include <algorithm>
#include <thread>

#include "muster/runtime/run_options.h"

namespace muster {
namespace {

constexpr size_t kMostLoans = 4096;
constexpr auto kPatience = std::chrono::seconds(60);  // with a borrower of whom nothing is heard

}  // namespace

LendingDesk& LendingDesk::instance() {
  static LendingDesk& desk = *new LendingDesk;  // never destroyed: borrowers may look at its slips to the very end
  return desk;
}

LendingDesk::LendingDesk() : slips_(std::make_unique<Slip[]>(kMostLoans)), entries_(kMostLoans) {
  last_number_ = random_id();
  for (size_t index = kMostLoans; index-- > 0;) free_.push_back(index);
}

LendingDesk::Loan LendingDesk::lend(std::vector<at::Tensor> tensors, Until until) {
  collect();
  absl::MutexLock lock(&mu_);
  if (free_.empty()) return {};
  const size_t index = free_.back();
  free_.pop_back();
  open_.push_back(index);
  entries_[index] = {std::move(tensors), until, Clock::now()};
  if (++last_number_ == 0) ++last_number_;
  slips_[index].number.store(last_number_, std::memory_order_release);
  lent_.fetch_add(1, std::memory_order_relaxed);
  if (until == Until::kGivenBack && !watched_) {
    watched_ = true;
    std::thread([this] { look_after_forgotten_loans(); }).detach();
  }
  return {reinterpret_cast<uint64_t>(&slips_[index]), last_number_};
}

std::vector<at::Tensor> LendingDesk::close(size_t index) {
  slips_[index].number.store(0, std::memory_order_seq_cst);  // before the memory can get other contents
  open_.erase(std::find(open_.begin(), open_.end(), index));
  free_.push_back(index);
  lent_.fetch_sub(1, std::memory_order_release);
  return std::exchange(entries_[index].tensors, {});
}

void LendingDesk::take_back(const Loan& loan) {
  if (loan.slip == 0) return;
  std::vector<at::Tensor> tensors;  // freed with no lock held
  absl::MutexLock lock(&mu_);
  const size_t index = reinterpret_cast<const Slip*>(loan.slip) - slips_.get();
  if (slips_[index].number.load(std::memory_order_relaxed) == loan.number) tensors = close(index);
}

void LendingDesk::collect() {
  if (lent() > 0) collect(Clock::now());
}

void LendingDesk::collect(Clock::time_point now) {
  std::vector<std::vector<at::Tensor>> tensors;  // freed with no lock held
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < open_.size();) {
    const size_t index = open_[i];
    const Entry& entry = entries_[index];
    const bool returned =
        slips_[index].returned.load(std::memory_order_acquire) == slips_[index].number.load(std::memory_order_relaxed);
    const bool forgotten = entry.until == Until::kGivenBack && now - entry.since > kPatience;
    if (returned || forgotten) {
      tensors.push_back(close(index));
    } else {
      ++i;
    }
  }
}

void LendingDesk::look_after_forgotten_loans() {
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    collect();
  }
}

}  // namespace muster
