#include "muster/graph/device_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

std::string round_trip(std::string_view text) { return DeviceSpec::parse(text).to_string(); }

std::string merged(std::string_view outer, std::string_view inner) {
  return DeviceSpec::parse(outer).merged_with(DeviceSpec::parse(inner)).to_string();
}

// What parse() complains about.
std::string complaint(std::string_view text) {
  try {
    DeviceSpec::parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return "";
}

// Behaviour 109.
TEST(DeviceSpec, PrintsWhatItParsed) {
  DeviceSpec spec{.job = "j", .replica = 0, .task = 1, .type = "CPU", .index = 2};

  EXPECT_EQ(round_trip(""), "");
  EXPECT_EQ(spec.to_string(), "/job:j/replica:0/task:1/device:CPU:2");
  EXPECT_EQ(DeviceSpec::parse(spec.to_string()), spec);
  EXPECT_EQ(DeviceSpec{.type = "GPU"}.to_string(), "/device:GPU:*");
  EXPECT_EQ(round_trip("/device:GPU:*"), "/device:GPU:*");
  EXPECT_EQ(round_trip("/device:cpu:0"), "/device:CPU:0");
  EXPECT_EQ(round_trip("/replica:1/task:0/cpu:0"), "/replica:1/task:0/device:CPU:0");
}

TEST(DeviceSpec, RefusesTwoTypes) {
  EXPECT_THAT(complaint("/job:muu/device:GPU:2/device:CPU:0"), HasSubstr("Multiple device types are not allowed"));
  EXPECT_THAT(complaint("/cpu:0/gpu:2"), HasSubstr("Multiple device types are not allowed"));
}

// Behaviour 110.
TEST(DeviceSpec, MergesWithTheInnerOneWinning) {
  EXPECT_EQ(merged("/job:foo/replica:0", "/task:1/device:GPU:2"), "/job:foo/replica:0/task:1/device:GPU:2");
  EXPECT_EQ(merged("/task:1/cpu:0", "/job:boo/device:GPU:0"), "/job:boo/task:1/device:GPU:0");
  EXPECT_EQ(merged("/job:foo", "/device:MyFunnyDevice:2"), "/job:foo/device:MyFunnyDevice:2");
  EXPECT_EQ(merged("/device:GPU:2", "/device:CPU"), "/device:CPU:*");
  EXPECT_EQ(merged("/device:GPU:2", "/device:GPU"), "/device:GPU:2");
}

// Behaviour 111.
TEST(DeviceSpec, NestsScopesOfAnyDepth) {
  DeviceSpec scope;
  for (const char* inner : {"/device:GPU:0", "/job:worker", "/device:CPU:0", "/job:ps"}) {
    scope = scope.merged_with(DeviceSpec::parse(inner));
  }

  EXPECT_EQ(scope.to_string(), "/job:ps/device:CPU:0");
}

TEST(DeviceSpec, PrintsInCanonicalOrderWhateverTheOrderOfTheInput) {
  EXPECT_EQ(round_trip("/device:GPU:1/task:3/replica:2/job:w"), "/job:w/replica:2/task:3/device:GPU:1");
  EXPECT_EQ(round_trip("/gpu:1/task:3/job:w"), "/job:w/task:3/device:GPU:1");
}

TEST(DeviceSpec, SaysWhatIsWrongAndWhatWasExpected) {
  EXPECT_EQ(complaint("/job:j/replica:foo"),
            "device \"/job:j/replica:foo\": replica \"foo\" is not a number; expected "
            "/job:NAME/replica:N/task:N/device:TYPE:N, each part optional");
  EXPECT_THAT(complaint("/job:j/bar:2"), HasSubstr("unknown attribute \"bar\""));
  EXPECT_THAT(complaint("/job"), HasSubstr("unknown attribute \"job\""));
  EXPECT_THAT(complaint("/job:a/job:b"), HasSubstr("more than one job"));
  EXPECT_THAT(complaint("/task:-1"), HasSubstr("task \"-1\" is not a number"));
  EXPECT_THAT(complaint("/task:99999999999999999999"), HasSubstr("too large"));
  EXPECT_THAT(complaint("/job:a b"), HasSubstr("no name of a job"));
  EXPECT_THAT(complaint("/device:CPU:x"), HasSubstr("device index \"x\""));
  EXPECT_THAT(complaint(std::string_view("/job:\0", 6)), HasSubstr("no name of a job"));
}

// Behaviour 112.
TEST(DeviceSpec, CompletesANameFromItsDefaults) {
  EXPECT_EQ(canonical_device("/cpu:0"), "/job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(canonical_device("/job:worker/task:1", "/gpu:0"), "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(canonical_device("/job:worker/task:1/cpu:3", "/job:ps/gpu:0"), "/job:worker/replica:0/task:1/device:CPU:3");
  EXPECT_EQ(canonical_device("/device:GPU"), "/job:localhost/replica:0/task:0/device:GPU:0");
}

TEST(DeviceSpec, ReadsShortNamesWithoutASlash) {
  EXPECT_EQ(round_trip("CPU:1"), "/device:CPU:1");
  EXPECT_EQ(round_trip("gpu:0"), "/device:GPU:0");
  EXPECT_EQ(round_trip("device:CPU:1"), "/device:CPU:1");
}

TEST(DeviceSpec, MatchesEveryDeviceThatHasItsParts) {
  DeviceSpec full = DeviceSpec::parse("/job:ps/replica:0/task:1/device:CPU:0");

  EXPECT_TRUE(full.complete());
  EXPECT_TRUE(DeviceSpec{}.matches(full));
  EXPECT_TRUE(DeviceSpec::parse("/job:ps/cpu:*").matches(full));
  EXPECT_FALSE(DeviceSpec::parse("/job:ps/task:0").matches(full));
  EXPECT_FALSE(DeviceSpec::parse("/job:ps").complete());
}

}  // namespace
}  // namespace muster
