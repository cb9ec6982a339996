// Tensors that other processes of this machine copy out of this one's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace muster {

// Keeps what is lent alive and unchanged until it is given back. A loan is a slip: a word that says which loan it
// stands for, at an address that is never used for anything else. The borrower copies the tensors and looks at the slip
// afterwards: if it still stands for this loan, nothing was let go of in between, and the copy is good. Then it writes
// the loan's number beside it, which gives the tensors back with no message at all. Thread-safe.
class LendingDesk {
 public:
  static LendingDesk& instance();

  struct Loan {
    uint64_t slip = 0;  // its address; 0: nothing is lent
    uint64_t number = 0;
  };

  enum class Until { kTakenBack, kGivenBack };
  // No loan if there are too many already. What a borrower never gives back comes home after a while.
  Loan lend(std::vector<at::Tensor> tensors, Until until) ABSL_LOCKS_EXCLUDED(mu_);
  void take_back(const Loan& loan) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets go of what was given back. Costs nothing when nothing is lent.
  void collect() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t lent() const { return lent_.load(std::memory_order_acquire); }

  // Where the borrower writes the number.
  static uint64_t return_address(const Loan& loan) { return loan.slip + sizeof(uint64_t); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Slip {  // as borrowers see it
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> returned{0};
  };
  struct Entry {
    std::vector<at::Tensor> tensors{};
    Until until{};
    Clock::time_point since{};
  };

  LendingDesk();
  void collect(Clock::time_point now) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> close(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void look_after_forgotten_loans() ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<Slip[]> slips_;
  std::atomic<int64_t> lent_ = 0;

  absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // of the slips
  std::vector<size_t> free_ ABSL_GUARDED_BY(mu_);
  std::vector<size_t> open_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_);
  bool watched_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
