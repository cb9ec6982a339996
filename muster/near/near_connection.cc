#include "muster/near/near_connection.h"

#include <array>
#include <cstring>

namespace muster {
namespace {

constexpr uint64_t kMostSlips = 1 << 16;
constexpr uint64_t kMostTensors = 1 << 20;  // of one loan

}  // namespace

bool send_letter(const Descriptor& socket, const NearLetter& letter, const std::string& task) {
  std::vector<char> message(sizeof letter + task.size());
  std::memcpy(message.data(), &letter, sizeof letter);
  std::memcpy(message.data() + sizeof letter, task.data(), task.size());
  return send_message(socket, message);
}

Received receive_letter(const Descriptor& socket, const NearProcess& sender, NearLetter& letter, std::string* task) {
  std::array<char, sizeof letter + kLongestTask> bytes;
  NearMessage message;
  const Received received = receive_message(socket, bytes, message);
  if (received != Received::kMessage) return received;
  if (message.bytes < sizeof letter || message.sender != sender.id()) return Received::kEnd;
  std::memcpy(&letter, bytes.data(), sizeof letter);
  if (letter.ledger.count > kMostSlips) return Received::kEnd;
  if (task != nullptr) task->assign(bytes.data() + sizeof letter, message.bytes - sizeof letter);
  return received;
}

bool can_read(const NearProcess& process, const LedgerPlace& ledger) {
  uint64_t mark = 0;
  return process.read({{&mark, ledger.mark, sizeof mark}}) && mark == ledger.marked;
}

bool NearConnection::borrow(const LoanLedger::Loan& loan, std::span<const Place> places) const {
  if (!parts_.we_read || loan.number == 0 || loan.slip >= parts_.theirs.count) return false;
  const NearProcess& lender = parts_.process;
  const uint64_t address = parts_.theirs.slips + loan.slip * sizeof(LoanSlip);
  LoanSlip slip;
  static_assert(sizeof slip.number == sizeof(uint64_t));
  if (!read_memory(lender.id(), {{&slip, address, sizeof slip}})) return false;
  if (slip.number.load(std::memory_order_relaxed) != loan.number || slip.count != places.size()) return false;
  if (places.size() > kMostTensors) return false;
  std::vector<LentTensor> lent(places.size());
  if (!read_memory(lender.id(), {{lent.data(), slip.tensors, lent.size() * sizeof(LentTensor)}})) return false;
  std::vector<NearPiece> pieces;
  for (size_t i = 0; i < places.size(); ++i) {
    if (lent[i].bytes != places[i].bytes) return false;
    pieces.push_back({places[i].here, lent[i].address, places[i].bytes});
  }
  // Last, so that the loan has not ended before all of it was copied.
  uint64_t number = 0;
  pieces.push_back({&number, address, sizeof number});
  return lender.read(pieces) && number == loan.number;
}

void NearConnection::give_back(const LoanLedger::Loan& loan) const {
  send_letter(parts_.socket, {.word = NearWord::kReturned, .returned = loan});
}

bool NearConnection::receive_returns() {
  NearLetter letter;
  for (size_t i = 0; i <= LoanLedger::kSlips; ++i) {  // more than can be lent: the rest waits
    switch (receive_letter(parts_.socket, parts_.process, letter)) {
      case Received::kNothing: return true;
      case Received::kEnd: return false;
      case Received::kMessage:
        if (letter.word != NearWord::kReturned) return false;
        ledger().end(letter.returned);
    }
  }
  return true;
}

}  // namespace muster
