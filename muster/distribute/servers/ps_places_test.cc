#include "muster/distribute/servers/ps_places.h"

#include <gtest/gtest.h>

namespace muster::ps_places_test {
namespace {

const std::vector<std::string> kTwo{"/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"};
const std::string kFirst = kTwo[0] + "/device:CPU:0", kSecond = kTwo[1] + "/device:CPU:0";

TEST(PsPlaces, AreTakenInTurnHoweverMuchIsPutThere) {
  PsPlaces places(kTwo, PsPlacement::kRoundRobin);

  EXPECT_EQ(places.device_for(1'000), kFirst);
  EXPECT_EQ(places.device_for(1), kSecond);
  EXPECT_EQ(places.device_for(1), kFirst);
}

TEST(PsPlaces, AreThoseWithTheFewestBytesIfAsked) {
  PsPlaces places(kTwo, PsPlacement::kBalancedByBytes);

  EXPECT_EQ(places.device_for(1'000), kFirst);
  EXPECT_EQ(places.device_for(600), kSecond);
  EXPECT_EQ(places.device_for(600), kSecond);
  EXPECT_EQ(places.device_for(1), kFirst);
}

TEST(PsPlaces, GiveEachNameOnce) {
  PsPlaces places(kTwo, PsPlacement::kRoundRobin);

  EXPECT_EQ(places.take_name("w"), "w");
  EXPECT_EQ(places.take_name("w_1"), "w_1");
  EXPECT_EQ(places.take_name("w"), "w_2");
  EXPECT_EQ(places.take_name("w"), "w_3");
}

}  // namespace
}  // namespace muster::ps_places_test
