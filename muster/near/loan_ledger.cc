#include "muster/near/loan_ledger.h"

#include <utility>

#include "muster/runtime/worker/run_options.h"

namespace muster {

LoanLedger::LoanLedger(std::shared_ptr<Count> lent)
    : lent_(std::move(lent)),
      mark_(std::make_unique<uint64_t>(random_id())),
      slips_(std::make_unique<LoanSlip[]>(kSlips)),
      entries_(kSlips) {
  for (size_t slip = kSlips; slip-- > 0;) free_.push_back(slip);
}

// A borrower that comes late finds no number, whatever becomes of the memory.
LoanLedger::~LoanLedger() { end_all_before(Clock::time_point::max()); }

LedgerPlace LoanLedger::place() const {
  return {.mark = reinterpret_cast<uint64_t>(mark_.get()),
          .marked = *mark_,
          .slips = reinterpret_cast<uint64_t>(slips_.get()),
          .count = kSlips};
}

LoanLedger::Loan LoanLedger::lend(std::vector<at::Tensor> tensors) {
  Entry entry{.since = Clock::now()};
  for (const at::Tensor& tensor : tensors) {
    entry.places.push_back({reinterpret_cast<uint64_t>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  entry.tensors = std::move(tensors);
  // Not to be guessed: a borrower that knows some loans knows nothing of the others.
  const uint64_t number = random_id();
  absl::MutexLock lock(&mu_);
  if (free_.empty()) return {};
  const size_t slip = free_.back();
  free_.pop_back();
  entries_[slip] = std::move(entry);
  slips_[slip].count = entries_[slip].places.size();
  slips_[slip].tensors = reinterpret_cast<uint64_t>(entries_[slip].places.data());
  slips_[slip].number.store(number, std::memory_order_seq_cst);
  lent_->fetch_add(1, std::memory_order_release);
  return {slip, number};
}

LoanLedger::Entry LoanLedger::close(size_t slip) {
  slips_[slip].number.store(0, std::memory_order_seq_cst);  // before the memory can get other contents
  free_.push_back(slip);
  lent_->fetch_sub(1, std::memory_order_release);
  return std::exchange(entries_[slip], {});
}

void LoanLedger::end(const Loan& loan) {
  if (loan.number == 0 || loan.slip >= kSlips) return;
  Entry ended;  // freed with no lock held
  absl::MutexLock lock(&mu_);
  if (slips_[loan.slip].number.load(std::memory_order_relaxed) == loan.number) ended = close(loan.slip);
}

void LoanLedger::end_all_before(Clock::time_point time) {
  if (lent_->load(std::memory_order_acquire) == 0) return;
  std::vector<Entry> ended;  // freed with no lock held
  absl::MutexLock lock(&mu_);
  for (size_t slip = 0; slip < kSlips; ++slip) {
    if (slips_[slip].number.load(std::memory_order_relaxed) != 0 && entries_[slip].since < time) {
      ended.push_back(close(slip));
    }
  }
}

}  // namespace muster
