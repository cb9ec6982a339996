#include "muster/lines/line_visit.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <cerrno>
#include <optional>

#include "muster/base/log.h"
#include "muster/base/test_wait.h"
#include "muster/lines/line_door.h"

namespace muster {
namespace {

using testing_support::eventually;

constexpr const char* kAddress = "127.0.0.1:1";

// A door and a visitor in one process; what is asked is answered at once.
class Lines : public testing::Test {
 protected:
  LineVisit::Means means(const std::function<LineDoor::Place()>& place, bool tell = true) {
    return {.ask =
                [this, place, tell](uint64_t key, const LineVisit::Means::Answered& answered) {
                  ++asked_;
                  // The hello may be on its way.
                  const bool let_in = key != 0 && tell && eventually([&] { return door_.let_in(key); });
                  answered({}, place(), let_in);
                },
            .run_in_background = [](const std::function<void()>& work) { work(); }};
  }
  LineVisit::Means means() {
    return means([this] { return door_.place(); });
  }

  LineDoor door_{"127.0.0.1"};
  std::shared_ptr<LineVisit> visit_ = std::make_shared<LineVisit>(kAddress);
  int asked_ = 0;
};

TEST_F(Lines, AreLaidEachWayAsTheyAreWanted) {
  visit_->want(LineWay::kToDoor, means());
  visit_->want(LineWay::kFromDoor, means());
  EXPECT_EQ(door_.lines(), 2u);

  at::Tensor got = torch::zeros({100}), sent = torch::randn({100});
  const std::vector<NearConnection::Place> places{{got.mutable_data_ptr(), got.nbytes()}};
  std::shared_ptr<Parcel> there = visit_->out().take();
  there->fill({sent});
  ASSERT_TRUE(there->send_some());
  const std::shared_ptr<LineIn> in = door_.from(there->name().line);
  ASSERT_TRUE(in && in->receive(there->name().number, places, std::chrono::steady_clock::time_point::max()));
  EXPECT_TRUE(torch::equal(got, sent));

  got.zero_();
  std::shared_ptr<Parcel> back = door_.to(visit_->caller())->take();
  back->fill({sent});
  ASSERT_TRUE(back->send_some());
  const std::shared_ptr<LineIn> here = visit_->in(back->name().line);
  ASSERT_TRUE(here && here->receive(back->name().number, places, std::chrono::steady_clock::time_point::max()));
  EXPECT_TRUE(torch::equal(got, sent));
}

TEST_F(Lines, AreNotMoreThanACallerMayHave) {
  for (size_t i = 0; i < 3 * kMostLines; ++i) {
    visit_->want(LineWay::kToDoor, means());
    visit_->want(LineWay::kFromDoor, means());
  }
  EXPECT_EQ(door_.lines(), 2 * kMostLines);
}

TEST_F(Lines, OfSomebodyWhoHasGoneAreForgotten) {
  visit_->want(LineWay::kToDoor, means());
  visit_->want(LineWay::kFromDoor, means());
  std::shared_ptr<Parcel> unread = visit_->out().take();
  unread->fill({torch::ones({1})});
  ASSERT_TRUE(unread->send_some());
  unread = nullptr;
  visit_ = std::make_shared<LineVisit>(kAddress);
  EXPECT_TRUE(eventually([&] {
    door_.sweep();
    return door_.lines() == 0;
  }));
}

TEST_F(Lines, AreLaidAnewWhenThoseBeforeBroke) {
  visit_->want(LineWay::kToDoor, means());
  visit_->out().take().reset();
  EXPECT_FALSE(visit_->out().take());
  visit_->want(LineWay::kToDoor, means());
  EXPECT_TRUE(visit_->out().take());
}

TEST_F(Lines, AreOfNobodyWhoHasNotCalled) {
  const LineDoor::Place place = door_.place();
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(begin_to_connect("127.0.0.1", place.port, place.ip4_only));
    ASSERT_TRUE(becomes(strangers.back(), POLLOUT, std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    const LineHello hello{.key = 5, .caller = 6, .way = i % 2 == 0 ? LineWay::kToDoor : static_cast<LineWay>(77)};
    const size_t part = i % 3 == 0 ? sizeof hello / 2 : sizeof hello;
    ASSERT_EQ(::send(strangers.back().number(), &hello, part, MSG_NOSIGNAL), static_cast<ssize_t>(part));
  }
  EXPECT_FALSE(door_.let_in(4));
  EXPECT_EQ(door_.lines(), 0u);
  visit_->want(LineWay::kToDoor, means());
  EXPECT_EQ(door_.lines(), 1u) << "whoever calls is let in, however many do not";
}

TEST_F(Lines, AreNotKeptForThoseWhoNeverCall) {
  LineDoor door("127.0.0.1", std::chrono::milliseconds(1));
  const LineDoor::Place place = door.place();
  const Descriptor stranger = begin_to_connect("127.0.0.1", place.port, place.ip4_only);
  EXPECT_TRUE(eventually([&] {
    door.sweep();
    char byte = 0;
    return ::recv(stranger.number(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
}

TEST_F(Lines, LeadToTheAddressOfTheServerAlone) {
  LineDoor door("127.0.0.2");
  const LineDoor::Place place = door.place();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto reached = [&](const char* host) {
    const Descriptor socket = begin_to_connect(host, place.port, place.ip4_only);
    int error = ECONNREFUSED;
    socklen_t length = sizeof error;
    if (socket && becomes(socket, POLLOUT, until)) {
      ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    return error == 0;
  };
  EXPECT_TRUE(reached("127.0.0.2"));
  EXPECT_FALSE(reached("127.0.0.1"));
}

TEST_F(Lines, LeaveDescriptorsForOtherThings) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = 64, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::shared_ptr<LineVisit>> visits;
  for (int i = 0; i < 40; ++i) {
    visits.push_back(std::make_shared<LineVisit>(kAddress));
    visits.back()->want(LineWay::kToDoor, means());
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_GT(door_.lines(), 0u);
  EXPECT_LE(door_.lines(), 64u / 4) << "both ends of a line are in this process";
}

TEST_F(Lines, AreGivenUpWhereTheyCannotBeLaid) {
  LogCapture log;
  // There is no port, the port is another one's, or nobody is there.
  for (const LineDoor::Place& place : {LineDoor::Place{}, door_.place(), LineDoor::Place{.port = 1}}) {
    visit_ = std::make_shared<LineVisit>(kAddress);
    asked_ = 0;
    for (int i = 0; i < 20; ++i) visit_->want(LineWay::kToDoor, means([&] { return place; }, /*tell=*/false));
    EXPECT_LE(asked_, 6);
    EXPECT_FALSE(visit_->out().take());
  }
  EXPECT_EQ(log.lines().size(), 2u) << "of what a user may want to know, once for each host";
  LineDoor closed(std::nullopt);
  EXPECT_EQ(closed.place().port, 0);
  EXPECT_FALSE(closed.to(visit_->caller()));
}

}  // namespace
}  // namespace muster
