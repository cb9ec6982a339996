// What two processes of one machine have when each knows, from the kernel, which process the other one is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/near/loan_ledger.h"
#include "muster/near/near_process.h"

namespace muster {

// How the two talk on their socket, with all numbers as this machine writes them:
//
//   visitor                              door
//     | --- kHello: its ledger ----------> |  has taken hold of the process, and tries to read the ledger's mark
//     | <-- kWelcome: ledger, key, task -- |
//     | --- kReady ----------------------> |  is the process that it was, so it may be read
//     | --- kReturned: a loan -----------> |  as often as something was lent in an answer
enum class NearWord : uint64_t { kHello = 0x6d7573746572'01, kWelcome, kReady, kReturned };
struct NearLetter {
  NearWord word{};
  LedgerPlace ledger{};  // of hello and welcome
  uint64_t key = 0;      // of welcome: what the visitor shows in its calls
  uint64_t reads = 0;    // of welcome and ready: whether the sender can read the receiver's memory
  LoanLedger::Loan returned{};
};
inline constexpr size_t kLongestTask = 512;  // bytes that follow the letter of a welcome

bool send_letter(const Descriptor& socket, const NearLetter& letter, const std::string& task = "");
// `sender` must be the process: else what came is the end.
Received receive_letter(const Descriptor& socket, const NearProcess& sender, NearLetter& letter,
                        std::string* task = nullptr);
// Whether `process` has the ledger where it says that it has it, and this process can read it.
bool can_read(const NearProcess& process, const LedgerPlace& ledger);

// One end of it. Reads only what the other process, and no third, has put into the ledger that it has for this
// connection; writes nothing there. Thread-safe.
class NearConnection {
 public:
  struct Parts {
    Descriptor socket;
    NearProcess process;
    std::unique_ptr<LoanLedger> ledger;  // of what is lent to the other one
    LedgerPlace theirs{};
    uint64_t key = 0;
    bool we_read = false;
    bool they_read = false;
  };
  explicit NearConnection(Parts parts) : parts_(std::move(parts)) {}

  uint64_t key() const { return parts_.key; }
  bool they_read() const { return parts_.they_read; }
  const NearProcess& process() const { return parts_.process; }
  const Descriptor& socket() const { return parts_.socket; }
  LoanLedger& ledger() { return *parts_.ledger; }

  struct Place {
    void* here;
    size_t bytes;
  };
  // Copies what was lent. False: the loan has ended, is not of these sizes, or cannot be read.
  bool borrow(const LoanLedger::Loan& loan, std::span<const Place> places) const;
  // Tells the other one that its loan has ended.
  void give_back(const LoanLedger::Loan& loan) const;
  // Ends the loans of which the other one has said so. False: it has gone.
  bool receive_returns();

 private:
  Parts parts_;
};

}  // namespace muster
