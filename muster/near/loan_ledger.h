// Tensors that one other process of this machine may copy out of this one's memory.
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

// As it lies in the memory of the lender, for the borrower to read. What is not in it is not read.
struct LoanSlip {
  std::atomic<uint64_t> number{0};  // 0: nothing is lent
  uint64_t count = 0;
  uint64_t tensors = 0;  // the address of so many LentTensors
};
struct LentTensor {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(LoanSlip) == 24 && sizeof(LentTensor) == 16);

// Where a ledger lies: told once, by the process that it is in.
struct LedgerPlace {
  uint64_t mark = 0;  // the address of a word that is `marked`
  uint64_t marked = 0;
  uint64_t slips = 0;  // the address of so many LoanSlips
  uint64_t count = 0;
};

// Keeps what is lent alive and unchanged until the loan ends. The borrower looks at the slip, copies the tensors and
// looks again: if the slip still has the loan's number, nothing was let go of in between, and the copy is good. It
// writes nothing: that a loan has ended is said by the call that it belongs to, or in a message. Thread-safe.
class LoanLedger {
 public:
  using Count = std::atomic<int64_t>;
  // `lent` counts what is lent by this ledger, and by others that it is handed to.
  explicit LoanLedger(std::shared_ptr<Count> lent = std::make_shared<Count>(0));
  ~LoanLedger();  // what is lent comes home
  LoanLedger(const LoanLedger&) = delete;
  LoanLedger& operator=(const LoanLedger&) = delete;

  struct Loan {
    uint64_t slip = 0;
    uint64_t number = 0;  // 0: nothing is lent
  };

  LedgerPlace place() const;
  // Contiguous tensors of the CPU. No loan if there are too many already.
  Loan lend(std::vector<at::Tensor> tensors) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing happens if the loan has ended before.
  void end(const Loan& loan) ABSL_LOCKS_EXCLUDED(mu_);
  using Clock = std::chrono::steady_clock;
  void end_all_before(Clock::time_point time) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr size_t kSlips = 256;

 private:
  struct Entry {
    std::vector<at::Tensor> tensors{};
    std::vector<LentTensor> places{};
    Clock::time_point since{};
  };

  Entry close(size_t slip) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Count> lent_;
  const std::unique_ptr<uint64_t> mark_;
  const std::unique_ptr<LoanSlip[]> slips_;

  absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // of the slips
  std::vector<size_t> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
