#include "muster/fit/event_file.h"

#include <gmock/gmock.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"
#include "muster/data/files/record_reader.h"
#include "muster/fit/event.pb.h"

namespace muster::event_file_test {
namespace {

using ::testing::SizeIs;
using testing_support::ScopedDirectory;

std::vector<proto::Event> events_in(const std::string& path) {
  std::vector<proto::Event> events;
  const auto reader = open_records(path, {.kind = RecordFormat::Kind::kTfRecord});
  while (const auto record = reader->next()) {
    EXPECT_TRUE(events.emplace_back().ParseFromArray(record->data(), static_cast<int>(record->size())));
  }
  return events;
}

TEST(EventFile, IsReadWhileItIsWritten) {
  const ScopedDirectory directory;
  EventFile file(directory.path() + "/logs/train");
  ASSERT_THAT(events_in(file.path()), SizeIs(1));
  EXPECT_EQ(events_in(file.path())[0].file_version(), "brain.Event:2");

  file.write(7, {{"loss", 0.5}, {"accuracy", 0.75}});

  const std::vector<proto::Event> events = events_in(file.path());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].step(), 7);
  ASSERT_EQ(events[1].summary().value_size(), 2);
  EXPECT_EQ(events[1].summary().value(1).tag(), "loss");
  EXPECT_EQ(events[1].summary().value(1).simple_value(), 0.5F);
}

TEST(EventFile, OfOneDirectoryHasANameOfItsOwn) {
  const ScopedDirectory directory;
  const EventFile one(directory.path()), other(directory.path());
  EXPECT_NE(one.path(), other.path());
  EXPECT_THROW(EventFile("/proc/nowhere"), Error);
}

}  // namespace
}  // namespace muster::event_file_test
