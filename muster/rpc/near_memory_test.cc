#include "muster/rpc/near_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

#include "muster/base/test_wait.h"
#include "muster/rpc/acquaintance.h"
#include "muster/rpc/lending_desk.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"

namespace muster {
namespace {

using testing_support::eventually;

const NearPeer kNear{.id = 1, .they_read = true};

// What another process knows: `secret` and a gap after it, at the addresses that they have here.
class OtherProcess {
 public:
  OtherProcess() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~OtherProcess() { end(); }
  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

TEST(NearMemory, CopiesPiecesOutOfAnotherProcess) {
  std::vector<int> numbers(100'000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
  uint64_t word = 7;
  OtherProcess other;
  const std::vector<int> expected = numbers;
  std::fill(numbers.begin(), numbers.end(), 0);  // here, and not there
  word = 0;

  std::vector<int> copy(numbers.size());
  uint64_t word_there = 0;
  std::vector<NearPiece> pieces;
  for (size_t i = 0; i < copy.size(); i += 50) {  // more than one system call takes
    pieces.push_back({&copy[i], address_of(&numbers[i]), 50 * sizeof(int)});
  }
  pieces.push_back({&word_there, address_of(&word), sizeof word});
  if (!read_memory(other.pid(), pieces)) GTEST_SKIP() << "this machine does not let a process read its child's memory";

  EXPECT_EQ(copy, expected);
  EXPECT_EQ(word_there, 7u);
  EXPECT_TRUE(write_word(other.pid(), address_of(&word), 9));
  EXPECT_TRUE(read_memory(other.pid(), {{&word_there, address_of(&word), sizeof word}}));
  EXPECT_EQ(word_there, 9u);
  EXPECT_FALSE(read_memory(other.pid(), {{&word_there, 8, sizeof word}})) << "nobody has memory there";
  const pid_t gone = other.pid();
  other.end();
  EXPECT_FALSE(read_memory(gone, {{&word_there, address_of(&word), sizeof word}}));
}

TEST(LendingDesk, KeepsATensorUntilTheBorrowerHasGivenItBack) {
  LendingDesk& desk = LendingDesk::instance();
  const at::Tensor tensor = torch::ones({4});
  const LendingDesk::Loan loan = desk.lend({tensor}, LendingDesk::Until::kGivenBack);

  desk.collect();
  EXPECT_EQ(tensor.use_count(), 2u);
  *reinterpret_cast<uint64_t*>(LendingDesk::return_address(loan)) = loan.number;
  desk.collect();
  EXPECT_EQ(tensor.use_count(), 1u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(loan.slip), 0u) << "a borrower that comes late sees that";
}

TEST(LendingDesk, IsNotDeceivedByAReturnOfAnEarlierLoan) {
  LendingDesk& desk = LendingDesk::instance();
  const LendingDesk::Loan first = desk.lend({torch::ones({4})}, LendingDesk::Until::kTakenBack);
  desk.take_back(first);
  const at::Tensor tensor = torch::ones({4});
  const LendingDesk::Loan second = desk.lend({tensor}, LendingDesk::Until::kTakenBack);
  ASSERT_EQ(second.slip, first.slip);

  *reinterpret_cast<uint64_t*>(LendingDesk::return_address(first)) = first.number;
  desk.collect();
  desk.take_back(first);
  EXPECT_EQ(tensor.use_count(), 2u);
  desk.take_back(second);
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(LendingDesk, LendsNothingMoreWhenItHasTooManyLoans) {
  LendingDesk& desk = LendingDesk::instance();
  std::vector<LendingDesk::Loan> loans;
  for (int i = 0; i < 100'000; ++i) {
    const LendingDesk::Loan loan = desk.lend({torch::ones({1})}, LendingDesk::Until::kTakenBack);
    if (loan.slip == 0) break;
    loans.push_back(loan);
  }
  EXPECT_LT(loans.size(), 100'000u);
  Frame frame;
  frame.tensors = {torch::ones({100'000})};
  const LentFrame plain = encode_for(kNear, frame, LendingDesk::Until::kTakenBack);
  EXPECT_EQ(plain.loan.slip, 0u);
  EXPECT_TRUE(torch::equal(decode(plain.message).tensors.at(0), frame.tensors[0])) << "it is sent instead";
  for (const LendingDesk::Loan& loan : loans) desk.take_back(loan);
}

class LentFrames : public testing::Test {
 protected:
  const Borrowing from_here{.process_of = [](uint64_t) { return ::getpid(); }};
  Frame frame;
  void SetUp() override { frame.tensors = {torch::randn({5}), torch::randn({300, 300}), torch::randn({20'000})}; }
};

TEST_F(LentFrames, HoldTheSmallTensorsAndLendTheLargeOnes) {
  const LentFrame lent = encode_for(kNear, frame, LendingDesk::Until::kTakenBack);

  EXPECT_LT(lent.message.Length(), 1000u);
  const Frame got = decode(lent.message, from_here);
  ASSERT_EQ(got.tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(got.tensors[i], frame.tensors[i]));
  LendingDesk::instance().take_back(lent.loan);
}

TEST_F(LentFrames, AreLostWhenTheLenderHasTakenThemBack) {
  const LentFrame lent = encode_for(kNear, frame, LendingDesk::Until::kTakenBack);
  LendingDesk::instance().take_back(lent.loan);

  EXPECT_THROW(decode(lent.message, from_here), LoanLost);
  EXPECT_THROW(decode(lent.message), LoanLost) << "of nobody that is known";
}

TEST_F(LentFrames, CannotLendMoreThanTheReceiverTakes) {
  const LentFrame lent = encode_for(kNear, frame, LendingDesk::Until::kTakenBack);
  Borrowing little = from_here;
  little.most_bytes = 400'000;
  try {
    decode(lent.message, little);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kResourceExhausted);
  }
  LendingDesk::instance().take_back(lent.loan);
}

TEST(Acquaintances, DoNotBelieveAProcessThatNamesAnotherOne) {
  static uint64_t shown = 0;
  OtherProcess other;
  Acquaintances acquaintances;
  proto::MeetRequest request;
  request.set_machine(machine_name());
  request.set_question(5);
  const proto::MeetAnswer first = acquaintances.meet(request);
  shown = first.question();  // in this process, not in the other

  request.set_meeting(first.meeting());
  request.set_process(other.pid());
  request.set_answer_address(address_of(&shown));
  request.set_reads(true);
  const proto::MeetAnswer second = acquaintances.meet(request);
  EXPECT_FALSE(second.reads());
  EXPECT_FALSE(acquaintances.find(second.acquaintance()).we_read);
  EXPECT_EQ(acquaintances.meet(request).acquaintance(), 0u) << "a meeting is of one use";
}

TEST(Acquaintances, AreNotMadeBetweenMachines) {
  Acquaintances acquaintances;
  proto::MeetRequest request;
  request.set_machine("another boot of another machine");
  const proto::MeetAnswer answer = acquaintances.meet(request);
  EXPECT_EQ(answer.process(), 0);
  EXPECT_EQ(answer.answer_address(), 0u);
}

// A server that gives back what it is given, and a channel to it.
class NearCalls : public testing::Test {
 protected:
  void SetUp() override {
    uint64_t word = 7, copy = 0;
    if (machine_name().empty() || !read_memory(::getpid(), {{&copy, address_of(&word), sizeof word}})) {
      GTEST_SKIP() << "this machine does not let a process read another one's memory";
    }
  }

  static std::unique_ptr<RpcServer> serve(const std::string& address) {
    RpcServerOptions options{.address = address, .task = "/job:ps/task:0"};
    return std::make_unique<RpcServer>(std::move(options), std::vector<RpcServer::MethodEntry>{
                                                               {"/muster.Test/Echo", [](std::shared_ptr<RpcCall> call) {
                                                                  Frame answer;
                                                                  answer.tensors = call->request().tensors;
                                                                  call->answer(std::move(answer));
                                                                }}});
  }

  // How many bytes went through the loopback device while 1 MB was echoed, after the two have met.
  int64_t echo(RpcChannel& channel) {
    Frame request;
    request.tensors = {torch::randn({250'000})};
    const int64_t before = loopback_bytes();
    const Frame answer = channel.call("/muster.Test/Echo", request);
    EXPECT_TRUE(torch::equal(answer.tensors.at(0), request.tensors[0]));
    return loopback_bytes() - before;
  }

  static int64_t loopback_bytes() {
    std::ifstream table("/proc/net/dev");
    for (std::string line; std::getline(table, line);) {
      if (const size_t at = line.find("lo:"); at != std::string::npos) return std::stoll(line.substr(at + 3));
    }
    return 0;
  }

  bool becomes_near(RpcChannel& channel) {
    return eventually([&] { return echo(channel) < 500'000; });
  }
};

TEST_F(NearCalls, CopyLargeTensorsFromMemoryToMemory) {
  auto server = serve("127.0.0.1:0");
  RpcChannel channel(server->address(), "/job:ps/task:0", {});
  EXPECT_TRUE(becomes_near(channel));
}

TEST_F(NearCalls, SendThemWhenAskedTo) {
  auto server = serve("127.0.0.1:0");
  RpcChannel channel(server->address(), "/job:ps/task:0", {.near_memory = false});
  for (int i = 0; i < 5; ++i) EXPECT_GT(echo(channel), 2'000'000);
}

TEST_F(NearCalls, GoOnWhenTheServerWasReplaced) {
  auto server = serve("127.0.0.1:0");
  const std::string address = server->address();
  RpcChannel channel(address, "/job:ps/task:0", {});
  ASSERT_TRUE(becomes_near(channel));

  server.reset();
  server = serve(address);  // which has never heard of the acquaintance
  Frame request;
  request.tensors = {torch::randn({250'000})};
  const Frame answer = channel.call("/muster.Test/Echo", request, {.wait_until_up = true});
  EXPECT_TRUE(torch::equal(answer.tensors.at(0), request.tensors[0]));
  EXPECT_TRUE(becomes_near(channel)) << "they meet again";
}

TEST_F(NearCalls, LeaveNothingLentBehind) {
  auto server = serve("127.0.0.1:0");
  RpcChannel channel(server->address(), "/job:ps/task:0", {});
  ASSERT_TRUE(becomes_near(channel));
  LendingDesk& desk = LendingDesk::instance();
  for (int i = 0; i < 10; ++i) echo(channel);
  eventually([&] {
    desk.collect();
    return desk.lent() == 0;
  });
  EXPECT_EQ(desk.lent(), 0);
}

}  // namespace
}  // namespace muster
