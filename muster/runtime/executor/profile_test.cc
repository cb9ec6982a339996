#include "muster/runtime/executor/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace muster {
namespace {

Profile::Event event(const std::string& op, const std::string& device, int begin_us, int end_us) {
  const Profile::Clock::time_point zero{};
  return {op, device, zero + std::chrono::microseconds(begin_us), zero + std::chrono::microseconds(end_us)};
}

TEST(Profile, WritesAChromeTraceWithARowPerDevice) {
  Profile profile;
  profile.add(event("aten::mm", "CPU:0", 10, 30));
  profile.add(event("aten::relu", "CPU:1", 15, 20));

  auto trace = nlohmann::json::parse(profile.chrome_trace());

  std::map<int, std::string> rows;
  std::map<std::string, nlohmann::json> spans;
  for (const auto& entry : trace["traceEvents"]) {
    if (entry["ph"] == "M") rows[entry["tid"]] = entry["args"]["name"];
    if (entry["ph"] == "X") spans[entry["name"]] = entry;
  }
  EXPECT_EQ(rows, (std::map<int, std::string>{{0, "CPU:0"}, {1, "CPU:1"}}));
  EXPECT_EQ(spans["aten::mm"]["dur"], 20.0);
  EXPECT_EQ(spans["aten::relu"]["ts"], 5.0);
  EXPECT_EQ(spans["aten::relu"]["tid"], 1);
}

TEST(Profile, ShowsCallsToOtherTasksBesideTheOps) {
  Profile profile;
  profile.add(event("aten::mm", "CPU:0", 0, 30));
  profile.add(event("second", Profile::kOtherTasks, 10, 25));  // over before the first one, so it comes first
  profile.add(event("first", Profile::kOtherTasks, 5, 40));
  profile.add(event("third", Profile::kOtherTasks, 25, 45));

  std::map<int, std::string> rows;
  std::map<std::string, std::string> row_of;
  const auto trace = nlohmann::json::parse(profile.chrome_trace());
  for (const auto& entry : trace["traceEvents"]) {
    if (entry["ph"] == "M") rows[entry["tid"]] = entry["args"]["name"];
    if (entry["ph"] == "X") row_of[entry["name"]] = rows[entry["tid"]];
  }
  EXPECT_EQ(row_of["first"], "other tasks");
  EXPECT_EQ(row_of["second"], "other tasks (2)");
  EXPECT_EQ(row_of["third"], "other tasks (2)");
  const std::string summary = profile.summary();
  EXPECT_NE(summary.find("100.0%       1  aten::mm"), std::string::npos) << summary;
  EXPECT_LT(summary.find("until other tasks had answered"), summary.find("first")) << summary;
}

TEST(Profile, SumsTimeByOpMostExpensiveFirst) {
  Profile profile;
  profile.add(event("aten::relu", "CPU:0", 0, 10));
  profile.add(event("aten::mm", "CPU:0", 10, 40));
  profile.add(event("aten::mm", "CPU:0", 40, 100));

  const std::string summary = profile.summary();

  EXPECT_LT(summary.find("aten::mm"), summary.find("aten::relu"));
  EXPECT_NE(summary.find("90.0"), std::string::npos) << summary;
  EXPECT_NE(summary.find("90.0%"), std::string::npos) << summary;
}

TEST(Profile, ShowsWhatWasWaitedForWhenThereWasNoElement) {
  Profile profile;
  EXPECT_EQ(profile.summary().find("waited for data"), std::string::npos);
  profile.add_input(
      {.waited = 0.001,
       .elements = 2,
       .stages = {{.name = "read", .lane = 0, .seconds = 0.0002, .elements = 64},
                  {.name = "map \"augment\"", .lane = 1, .threads = 2, .seconds = 0.0016, .elements = 2}}});

  const std::string summary = profile.summary();

  EXPECT_NE(summary.find("waited for data 1000.0 us, for 2 elements"), std::string::npos) << summary;
  EXPECT_LT(summary.find("80.0%       2  map \"augment\""), summary.find("20.0%      64  read")) << summary;
}

}  // namespace
}  // namespace muster
