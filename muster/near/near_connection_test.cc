#include "muster/near/near_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <torch/torch.h>

#include <numeric>

#include "muster/near/near_door.h"
#include "muster/near/near_socket.h"
#include "muster/near/near_visit.h"
#include "muster/near/test_process.h"

namespace muster {
namespace {

using testing_support::address_of;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::OtherProcess;

constexpr const char* kTask = "/job:ps/replica:0/task:0";

// One of another process, or nothing when that has hung up.
std::optional<NearLetter> await_letter(const Descriptor& socket, const NearProcess& process) {
  pollfd end{.fd = socket.number(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, std::chrono::milliseconds(kPatience).count());
  NearLetter letter;
  return receive_letter(socket, process, letter) == Received::kMessage ? std::optional(letter) : std::nullopt;
}

class NearProcesses : public testing::Test {
 protected:
  void SetUp() override {
    uint64_t word = 7, copy = 0;
    OtherProcess other;
    if (!near_memory_wanted() || !read_memory(other.pid(), {{&copy, address_of(&word), sizeof word}})) {
      GTEST_SKIP() << "this machine does not let a process read another one's memory";
    }
  }

  // In another process: comes to the door with this ledger, and tells the test its key.
  static Descriptor visit(OtherProcess& test, const std::string& door, const LedgerPlace& ledger) {
    Descriptor socket = connect_to(door);
    const std::optional<NearProcess> server = NearProcess::behind(socket);
    send_letter(socket, {.word = NearWord::kHello, .ledger = ledger});
    test.tell(1);
    const std::optional<NearLetter> welcome = await_letter(socket, *server);
    send_letter(socket, {.word = NearWord::kReady, .reads = 1});
    test.tell(welcome ? welcome->key : 0);
    return socket;
  }

  // In the test: the connection with a process that visits.
  std::shared_ptr<NearConnection> let_in(OtherProcess& visitor) {
    EXPECT_EQ(visitor.hear(), 1u);
    door_.look();
    return door_.find(visitor.hear());
  }

  // A visitor that lends `secret_`, as it is in its memory, under this number and slip 0.
  static constexpr uint64_t kNumber = 4711;
  struct Forged {
    LoanSlip slip{};
    LentTensor tensor{};
    uint64_t mark = 99;
    LedgerPlace place() { return {.mark = address_of(&mark), .marked = 99, .slips = address_of(&slip), .count = 1}; }
    void lend(uint64_t address, uint64_t bytes) {
      tensor = {address, bytes};
      slip.count = 1;
      slip.tensors = address_of(&tensor);
      slip.number = kNumber;
    }
  };
  void lend_secret(OtherProcess& test) {
    for (uint64_t& word : secret_) word = 5;  // there, and not here
    auto* forged = new Forged;
    forged->lend(address_of(secret_.data()), sizeof secret_);
    new Descriptor(visit(test, name_, forged->place()));  // stays open
  }

  bool borrow(NearConnection& from, const LoanLedger::Loan& loan = {0, kNumber}, size_t bytes = sizeof secret_) {
    got_.fill(0);
    const NearConnection::Place place{got_.data(), bytes};
    return from.borrow(loan, std::span(&place, 1));
  }

  NearDoor door_{kTask};
  const std::string name_ = door_.name();
  std::array<uint64_t, 64> secret_{};
  std::array<uint64_t, 128> got_{};
};

TEST_F(NearProcesses, ReadWhatTheOtherOneLends) {
  OtherProcess lender([&](OtherProcess& test) { lend_secret(test); });
  const std::shared_ptr<NearConnection> connection = let_in(lender);

  ASSERT_TRUE(connection);
  EXPECT_EQ(connection->process().id(), lender.pid());
  EXPECT_TRUE(borrow(*connection));
  EXPECT_EQ(got_[0], 5u);
}

TEST_F(NearProcesses, ReadNothingThatWasNotLent) {
  OtherProcess lender([&](OtherProcess& test) { lend_secret(test); });
  const std::shared_ptr<NearConnection> connection = let_in(lender);
  ASSERT_TRUE(connection);

  EXPECT_FALSE(borrow(*connection, {0, kNumber + 1})) << "another number";
  EXPECT_FALSE(borrow(*connection, {0, 0})) << "no number";
  for (const uint64_t slip : {uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} / sizeof(LoanSlip) + 1}) {
    EXPECT_FALSE(borrow(*connection, {slip, kNumber})) << "slip " << slip << ", which is outside of the ledger";
  }
  for (const size_t bytes : {sizeof secret_ - 8, sizeof secret_ + 8, size_t{8}}) {
    EXPECT_FALSE(borrow(*connection, {0, kNumber}, bytes)) << bytes << " bytes, which is not what was lent";
  }
  const NearConnection::Place two[2] = {{got_.data(), sizeof secret_ / 2}, {got_.data() + 32, sizeof secret_ / 2}};
  EXPECT_FALSE(connection->borrow({0, kNumber}, two)) << "two tensors, and one was lent";
  EXPECT_EQ(std::accumulate(got_.begin(), got_.end(), uint64_t{0}), 0u);
}

TEST_F(NearProcesses, ReadTheVisitorAndNotThemselvesWhateverAddressItNames) {
  secret_.fill(77);  // here; the visitor has the address from here, and its own memory at it
  OtherProcess lender([&](OtherProcess& test) { lend_secret(test); });
  const std::shared_ptr<NearConnection> connection = let_in(lender);
  ASSERT_TRUE(connection);

  EXPECT_TRUE(borrow(*connection));
  EXPECT_EQ(got_[0], 5u) << "its own memory";
}

TEST_F(NearProcesses, ReadNothingAtAnAddressWhereNobodyHasMemory) {
  OtherProcess lender([&](OtherProcess& test) {
    auto* forged = new Forged;
    forged->lend(4096, sizeof secret_);
    new Descriptor(visit(test, name_, forged->place()));
  });
  const std::shared_ptr<NearConnection> connection = let_in(lender);
  ASSERT_TRUE(connection);

  EXPECT_FALSE(borrow(*connection));
}

TEST_F(NearProcesses, DoNotKnowAVisitorWhoseLedgerCannotBeRead) {
  OtherProcess lender([&](OtherProcess& test) {
    Forged forged;
    LedgerPlace place = forged.place();
    place.marked = 98;
    Descriptor socket = connect_to(name_);
    const std::optional<NearProcess> server = NearProcess::behind(socket);
    send_letter(socket, {.word = NearWord::kHello, .ledger = place});
    test.tell(1);
    const std::optional<NearLetter> welcome = await_letter(socket, *server);
    send_letter(socket, {.word = NearWord::kReady, .reads = 0});
    test.tell(welcome ? welcome->key : 0);
    while (true) ::pause();
  });

  EXPECT_FALSE(let_in(lender));
}

TEST_F(NearProcesses, ReadNothingOfOneThatHasDied) {
  OtherProcess lender([&](OtherProcess& test) { lend_secret(test); });
  const std::shared_ptr<NearConnection> connection = let_in(lender);
  ASSERT_TRUE(connection);
  ASSERT_TRUE(borrow(*connection));

  lender.end();
  EXPECT_FALSE(borrow(*connection));
  EXPECT_FALSE(connection->process().alive());
  door_.look();
  EXPECT_FALSE(door_.find(connection->key())) << "it is forgotten";
}

TEST_F(NearProcesses, ReadNothingOfOneThatIsAnotherProgramByNow) {
  OtherProcess lender([&](OtherProcess& test) {
    lend_secret(test);
    test.hear();
    ::execl("/bin/sleep", "sleep", "600", nullptr);
  });
  const std::shared_ptr<NearConnection> connection = let_in(lender);
  ASSERT_TRUE(connection);
  ASSERT_TRUE(borrow(*connection));

  lender.tell(1);
  EXPECT_TRUE(eventually([&] { return !borrow(*connection); }));
  EXPECT_TRUE(eventually([&] { return !connection->receive_returns(); })) << "its socket is closed";
}

TEST_F(NearProcesses, ReadNothingOfTheNextProcessThatHasTheNumber) {
  auto lender = std::make_unique<OtherProcess>([&](OtherProcess& test) { lend_secret(test); });
  const std::shared_ptr<NearConnection> connection = let_in(*lender);
  ASSERT_TRUE(connection);
  ASSERT_TRUE(borrow(*connection));
  const pid_t number = connection->process().id();
  lender->end();

  // A process with the same number, whose memory looks the same. Its ledger would be believed.
  secret_.fill(6);
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = address_of(&number);
  arguments.set_tid_size = 1;
  const pid_t next = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (next == 0) {
    while (true) ::pause();
  }
  if (next < 0) GTEST_SKIP() << "only root can give a process a number";
  uint64_t word = 0;
  EXPECT_EQ(next, number);
  EXPECT_TRUE(read_memory(number, {{&word, address_of(secret_.data()), sizeof word}}));
  EXPECT_EQ(word, 6u);

  EXPECT_FALSE(borrow(*connection));
  EXPECT_FALSE(connection->process().read({{&word, address_of(secret_.data()), sizeof word}}));
  ::kill(next, SIGKILL);
  ::waitpid(next, nullptr, 0);
}

TEST_F(NearProcesses, DoNotLetInAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  OtherProcess stranger([&](OtherProcess& test) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    Forged forged;
    const Descriptor socket = connect_to(name_);
    send_letter(socket, {.word = NearWord::kHello, .ledger = forged.place()});
    test.tell(1);
    char byte;
    pollfd end{.fd = socket.number(), .events = POLLIN, .revents = 0};
    ::poll(&end, 1, std::chrono::milliseconds(kPatience).count());
    test.tell(::recv(socket.number(), &byte, 1, 0) > 0 ? 3 : 2);
  });

  ASSERT_EQ(stranger.hear(), 1u);
  door_.look();
  EXPECT_EQ(stranger.hear(), 2u) << "the door was closed";
}

TEST_F(NearProcesses, DoNotBelieveAThirdOneThatSpeaksForTheVisitor) {
  OtherProcess visitor([&](OtherProcess& test) {
    Forged forged;
    forged.lend(address_of(secret_.data()), sizeof secret_);
    const Descriptor socket = connect_to(name_);
    const std::optional<NearProcess> server = NearProcess::behind(socket);
    send_letter(socket, {.word = NearWord::kHello, .ledger = forged.place()});
    test.tell(1);
    const std::optional<NearLetter> welcome = await_letter(socket, *server);
    if (const pid_t third = ::fork(); third == 0) {
      send_letter(socket, {.word = NearWord::kReady, .reads = 1});
      ::_exit(0);
    } else {
      ::waitpid(third, nullptr, 0);
    }
    test.tell(welcome->key);
    while (true) ::pause();
  });

  EXPECT_FALSE(let_in(visitor));
}

TEST_F(NearProcesses, TakeNothingElseForAVisitor) {
  const NearLetter ready{.word = NearWord::kReady, .reads = 1};
  NearLetter endless{.word = NearWord::kHello};
  endless.ledger.count = ~uint64_t{0};
  for (const NearLetter& first : {ready, endless}) {
    const Descriptor socket = connect_to(name_);
    ASSERT_TRUE(socket);
    EXPECT_TRUE(send_letter(socket, first));
    door_.look();
    EXPECT_FALSE(send_letter(socket, ready)) << "it hangs up";
  }
  const Descriptor garbage = connect_to(name_);
  EXPECT_TRUE(send_message(garbage, std::vector<char>(10'000, 'x')));
  door_.look();
  EXPECT_FALSE(send_letter(garbage, ready));
}

// Both ends in this process, without a wire between them.
class NearMeeting : public NearProcesses {
 protected:
  NearVisit::Ask ask() {
    return [this](bool knocked, const NearVisit::Answered& answered) {
      if (knocked) door_.look();
      answered({}, knocked ? "" : door_.name());
    };
  }

  const std::shared_ptr<NearVisit> visit_ = std::make_shared<NearVisit>(kTask);
  const at::Tensor tensor_ = torch::arange(100);
};

TEST_F(NearMeeting, LendsBothWays) {
  visit_->meet(ask());
  const std::shared_ptr<NearConnection> here = visit_->connection();
  ASSERT_TRUE(here);
  const std::shared_ptr<NearConnection> there = door_.find(here->key());
  ASSERT_TRUE(there);

  for (const auto& [lender, borrower] : {std::pair(here, there), std::pair(there, here)}) {
    const LoanLedger::Loan loan = lender->ledger().lend({tensor_});
    const at::Tensor copy = torch::zeros_like(tensor_);
    const NearConnection::Place place{copy.mutable_data_ptr(), copy.nbytes()};
    EXPECT_TRUE(borrower->borrow(loan, std::span(&place, 1)));
    EXPECT_TRUE(torch::equal(copy, tensor_));
    lender->ledger().end(loan);
    EXPECT_FALSE(borrower->borrow(loan, std::span(&place, 1))) << "the loan has ended";
  }
}

TEST_F(NearMeeting, TakesPlaceWhileManyStandAtTheDoorAndSayNothing) {
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to(name_));

  visit_->meet(ask());

  EXPECT_TRUE(visit_->connection());
}

TEST_F(NearMeeting, EndsALoanThatIsGivenBack) {
  visit_->meet(ask());
  const std::shared_ptr<NearConnection> here = visit_->connection();
  ASSERT_TRUE(here);
  const LoanLedger::Loan loan = door_.find(here->key())->ledger().lend({tensor_});

  here->give_back({loan.slip, loan.number + 1});
  door_.collect();
  EXPECT_EQ(door_.lent(), 1) << "that was another loan";
  here->give_back(loan);
  EXPECT_EQ(door_.lent(), 1);
  door_.collect();
  EXPECT_EQ(door_.lent(), 0);
  EXPECT_EQ(tensor_.use_count(), 1u);
}

TEST_F(NearMeeting, EndsTheLoansOfOneThatHasGone) {
  visit_->meet(ask());
  ASSERT_TRUE(visit_->connection());
  door_.find(visit_->connection()->key())->ledger().lend({tensor_});
  ASSERT_EQ(door_.lent(), 1);

  visit_->forget(visit_->connection()->key());
  door_.collect();
  EXPECT_EQ(door_.lent(), 0);
}

TEST_F(NearMeeting, DoesNotTakePlaceAtTheDoorOfAnotherTask) {
  const auto relayed = std::make_shared<NearVisit>("/job:ps/replica:0/task:1");

  relayed->meet(ask());

  EXPECT_FALSE(relayed->connection());
  EXPECT_FALSE(relayed->unmet()) << "nor is it tried again";
}

TEST_F(NearMeeting, LetsARelayReadNothingButWhatItWasLentAnyway) {
  const auto victim = std::make_shared<NearVisit>("");  // which does not know whom it visits
  victim->meet(ask());                                  // a hostile server has named the door of an honest one
  const std::shared_ptr<NearConnection> known = victim->connection();
  ASSERT_TRUE(known);
  const std::array<uint64_t, 64> never_lent{1, 2, 3};

  // The hostile one has the key, and shows it to the honest one.
  const std::shared_ptr<NearConnection> honest = door_.find(known->key());
  std::array<uint64_t, 64> got{};
  const NearConnection::Place place{got.data(), sizeof got};
  const uint64_t slips = known->ledger().place().slips;
  for (const uint64_t slip : {(address_of(never_lent.data()) - slips) / sizeof(LoanSlip), uint64_t{0}}) {
    EXPECT_FALSE(honest->borrow({slip, 1}, std::span(&place, 1)));
  }
  EXPECT_EQ(got[0], 0u);
}

}  // namespace
}  // namespace muster
