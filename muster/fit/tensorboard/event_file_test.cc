#include "muster/fit/tensorboard/event_file.h"

#include <gmock/gmock.h>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/event.pb.h"
#include "muster/fit/test_events.h"

namespace muster::event_file_test {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;
using testing_support::events_in;
using testing_support::ScopedDirectory;

TEST(EventFile, IsReadWhileItIsWritten) {
  const ScopedDirectory directory;
  EventFile file(directory.path() + "/logs/train");
  ASSERT_THAT(events_in(file.path()), SizeIs(1));
  EXPECT_EQ(events_in(file.path())[0].file_version(), "brain.Event:2");
  proto::Event event;
  event.set_step(7);
  event.set_graph_def(std::string(100'000, 'g'));

  file.add(event);
  file.flush();

  const std::vector<proto::Event> events = events_in(file.path());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].graph_def(), event.graph_def());
  EXPECT_GE(events[1].wall_time(), events[0].wall_time());
}

TEST(EventFile, OfOneDirectoryHasANameOfItsOwn) {
  const ScopedDirectory directory;
  const EventFile one(directory.path()), other(directory.path());
  EXPECT_NE(one.path(), other.path());
}

TEST(EventFile, SaysWhyItCannotBeWritten) {
  EXPECT_THAT(testing_support::error_of(StatusCode::kUnavailable, [] { const EventFile file("/proc/nowhere"); }),
              EndsWith("cannot be written: No such file or directory"));
}

}  // namespace
}  // namespace muster::event_file_test
