// What is in event files, for the tests of this folder. Not part of the library.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "muster/data/files/record_reader.h"
#include "muster/fit/event.pb.h"

namespace muster::testing_support {

inline std::vector<proto::Event> events_in(const std::string& path) {
  std::vector<proto::Event> events;
  const auto reader = open_records(path, {.kind = RecordFormat::Kind::kTfRecord});
  while (const auto record = reader->next()) {
    EXPECT_TRUE(events.emplace_back().ParseFromArray(record->data(), static_cast<int>(record->size())));
  }
  return events;
}

// Of all files of a directory, without the first of each, which says the version of the format.
inline std::vector<proto::Event> events_below(const std::string& directory) {
  std::vector<proto::Event> all;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const std::vector<proto::Event> events = events_in(entry.path().string());
    all.insert(all.end(), events.begin() + 1, events.end());
  }
  return all;
}

}  // namespace muster::testing_support
