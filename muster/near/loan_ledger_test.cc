#include "muster/near/loan_ledger.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

namespace muster {
namespace {

const LoanSlip& slip_of(const LoanLedger& ledger, const LoanLedger::Loan& loan) {
  return reinterpret_cast<const LoanSlip*>(ledger.place().slips)[loan.slip];
}

TEST(LoanLedger, KeepsATensorUntilItsLoanEnds) {
  LoanLedger ledger;
  const at::Tensor tensor = torch::ones({4});
  const LoanLedger::Loan loan = ledger.lend({tensor});

  EXPECT_EQ(tensor.use_count(), 2u);
  ledger.end(loan);
  EXPECT_EQ(tensor.use_count(), 1u);
  EXPECT_EQ(slip_of(ledger, loan).number.load(), 0u) << "a borrower that comes late sees that";
}

TEST(LoanLedger, IsNotDeceivedByTheEndOfAnEarlierLoan) {
  LoanLedger ledger;
  const LoanLedger::Loan first = ledger.lend({torch::ones({4})});
  ledger.end(first);
  const at::Tensor tensor = torch::ones({4});
  const LoanLedger::Loan second = ledger.lend({tensor});
  ASSERT_EQ(second.slip, first.slip);

  ledger.end(first);
  EXPECT_EQ(tensor.use_count(), 2u);
  ledger.end({.slip = uint64_t{1} << 40, .number = second.number});
  EXPECT_EQ(tensor.use_count(), 2u);
  ledger.end(second);
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(LoanLedger, LendsNothingMoreWhenItHasTooManyLoans) {
  const auto lent = std::make_shared<LoanLedger::Count>(0);
  {
    LoanLedger ledger(lent);
    for (size_t i = 0; i < LoanLedger::kSlips; ++i) EXPECT_NE(ledger.lend({torch::ones({1})}).number, 0u);
    EXPECT_EQ(ledger.lend({torch::ones({1})}).number, 0u);
    EXPECT_EQ(lent->load(), static_cast<int64_t>(LoanLedger::kSlips));
  }
  EXPECT_EQ(lent->load(), 0);
}

TEST(LoanLedger, EndsWhatIsLentForTooLong) {
  LoanLedger ledger;
  const at::Tensor tensor = torch::ones({4});
  ledger.lend({tensor});
  const auto later = LoanLedger::Clock::now();

  ledger.end_all_before(later - std::chrono::hours(1));
  EXPECT_EQ(tensor.use_count(), 2u);
  ledger.end_all_before(later + std::chrono::hours(1));
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(LoanLedger, GivesNumbersThatTellNothingOfTheNextOnes) {
  LoanLedger ledger;
  std::set<uint64_t> steps;
  uint64_t last = ledger.lend({torch::ones({1})}).number;
  for (int i = 0; i < 50; ++i) {
    const uint64_t number = ledger.lend({torch::ones({1})}).number;
    steps.insert(number - std::exchange(last, number));
  }
  EXPECT_EQ(steps.size(), 50u);
}

}  // namespace
}  // namespace muster
