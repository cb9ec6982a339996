#include "muster/fit/tensorboard/event_reader.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "muster/cluster/test_environment.h"
#include "muster/fit/event.pb.h"
#include "muster/fit/tensorboard/event_file.h"
#include "muster/fit/tensorboard/summary_writer.h"

namespace muster::event_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using testing_support::ScopedDirectory;

class EventReaderTest : public ::testing::Test {
 protected:
  static std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The bytes of a file with the scalars 0, 1 and 2 of steps of the same number, and where its records end.
  std::string three_scalars() {
    EventFile file(directory_.path());
    ends_ = {static_cast<size_t>(std::filesystem::file_size(file.path()))};
    for (int step = 0; step < 3; ++step) {
      proto::Event event;
      event.set_step(step);
      proto::EventSummary::Value& value = *event.mutable_summary()->add_value();
      value.set_tag("loss");
      value.set_simple_value(static_cast<float>(step));
      file.add(std::move(event));
      file.flush();
      ends_.push_back(static_cast<size_t>(std::filesystem::file_size(file.path())));
    }
    const std::string bytes = read_file(file.path());
    std::filesystem::remove(file.path());
    return bytes;
  }
  std::string write(const std::string& bytes) const { return directory_.write("events.tfevents.1", bytes); }
  static std::vector<double> values_of(EventReader& reader) {
    std::vector<double> values;
    while (const auto event = reader.next()) values.push_back(event->value);
    return values;
  }

  const ScopedDirectory directory_;
  std::vector<size_t> ends_;
};

TEST_F(EventReaderTest, GivesWhatIsWholeOfAFileThatIsBeingWritten) {
  const std::string bytes = three_scalars();

  for (size_t length = ends_[1]; length < ends_[2]; ++length) {
    EventReader reader(write(bytes.substr(0, length)));
    EXPECT_THAT(values_of(reader), ElementsAre(0)) << length;
  }
  EventReader empty(write(""));
  EXPECT_THAT(values_of(empty), IsEmpty());
}

TEST_F(EventReaderTest, GoesOnBehindARecordThatIsDamaged) {
  std::string bytes = three_scalars();
  bytes[ends_[1] + 14] ^= 1;
  EventReader reader(write(bytes));

  EXPECT_EQ(reader.next()->value, 0);
  try {
    reader.next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kDataLoss);
    EXPECT_THAT(error.what(), HasSubstr("record 2: "));
  }
  EXPECT_THAT(values_of(reader), ElementsAre(2));
}

TEST_F(EventReaderTest, EndsWhereALengthIsDamaged) {
  std::string bytes = three_scalars();
  bytes[ends_[1]] ^= 1;
  EventReader reader(write(bytes));

  EXPECT_EQ(reader.next()->value, 0);
  EXPECT_THROW(reader.next(), Error);
  EXPECT_EQ(reader.next(), std::nullopt);
}

TEST_F(EventReaderTest, TakesTensorsOfScalarsForScalars) {
  EventFile file(directory_.path());
  auto add = [&](const char* tag, const char* plugin, auto fill) {
    proto::Event event;
    proto::EventSummary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.mutable_metadata()->mutable_plugin()->set_name(plugin);
    fill(*value.mutable_tensor());
    file.add(std::move(event));
  };
  add("content", "scalars", [](proto::EventTensor& tensor) {
    const float number = 0.5F;
    tensor.set_type(proto::EventTensor::FLOAT32);
    tensor.set_content(&number, sizeof number);
  });
  add("double", "scalars", [](proto::EventTensor& tensor) {
    tensor.set_type(proto::EventTensor::FLOAT64);
    tensor.add_doubles(1.5);
  });
  add("text", "text", [](proto::EventTensor& tensor) {
    tensor.set_type(proto::EventTensor::STRING);
    tensor.add_strings("no number");
  });
  file.flush();

  EventReader reader(file.path());

  EXPECT_THAT(values_of(reader), ElementsAre(0.5, 1.5));
}

TEST_F(EventReaderTest, PutsTheFilesOfARunTogether) {
  SummaryWriter(directory_.path() + "/a/train").scalars({{"loss", 3}, {"auc", 0.5}}, 0);
  SummaryWriter first(directory_.path() + "/b");
  first.scalar("loss", 1, 0);
  first.scalar("loss", 2, 5);
  first.flush();
  SummaryWriter(directory_.path() + "/b").scalar("loss", 4, 5);  // a job that was started again
  std::ofstream(directory_.path() + "/b/notes.txt") << "no events";

  const ScalarCurves found = scalars_below(directory_.path());

  EXPECT_EQ(found.files, 3);
  EXPECT_THAT(found.damaged, IsEmpty());
  ASSERT_THAT(found.curves, SizeIs(3));
  EXPECT_EQ(found.curves[0].tag, "auc");
  EXPECT_EQ(found.curves[0].run, "a/train");
  EXPECT_EQ(found.curves[2].run, "b");
  ASSERT_THAT(found.curves[2].points, SizeIs(2));
  EXPECT_EQ(found.curves[2].points[1].value, 4);
}

TEST_F(EventReaderTest, ReplacesWhatOlderFilesHaveFromTheStepAtWhichANewerOneBegins) {
  const auto write_steps = [&](const std::string& run, int first, int last, double value) {
    SummaryWriter writer(directory_.path() + "/" + run);
    for (int step = first; step <= last; ++step) writer.scalar("loss", value, step);
  };
  const auto steps_and_values = [](const ScalarCurve& curve) {
    std::vector<std::pair<int64_t, double>> all;
    for (const ScalarEvent& point : curve.points) all.emplace_back(point.step, point.value);
    return all;
  };
  write_steps("another", 0, 3, 1);
  write_steps("another", 0, 1, 2);
  write_steps("restarted", 0, 3, 1);
  write_steps("restarted", 2, 2, 2);
  write_steps("went_on", 0, 1, 1);
  write_steps("went_on", 2, 2, 2);

  const ScalarCurves found = scalars_below(directory_.path());

  ASSERT_THAT(found.curves, SizeIs(3));
  EXPECT_THAT(steps_and_values(found.curves[0]), ElementsAre(Pair(0, 2), Pair(1, 2)));
  EXPECT_THAT(steps_and_values(found.curves[1]), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 2)));
  EXPECT_THAT(steps_and_values(found.curves[2]), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 2)));
  EXPECT_THAT(found.replaced, ElementsAre("another"));
}

TEST_F(EventReaderTest, KeepsWhatTwoWriteIntoOneRunAtTheSameTime) {
  {
    SummaryWriter first(directory_.path() + "/shared"), second(directory_.path() + "/shared");
    for (int step = 0; step < 6; ++step) {
      (step % 2 == 0 ? first : second).scalar("loss", step, step);
      if (step == 3) second.scalar("late", step, step);
    }
  }

  const ScalarCurves found = scalars_below(directory_.path());

  ASSERT_THAT(found.curves, SizeIs(2));
  EXPECT_THAT(found.curves[1].points, SizeIs(6));
  EXPECT_THAT(found.replaced, testing::IsEmpty());
}

TEST_F(EventReaderTest, DoesNotTakeAJobThatWentOnForAnotherTraining) {
  {
    SummaryWriter before(directory_.path() + "/run");
    for (int step = 0; step < 4; ++step) before.scalar("loss", step, step);
    before.scalar("late", 3, 3);
  }
  SummaryWriter(directory_.path() + "/run").scalar("late", 3, 3);

  EXPECT_THAT(scalars_below(directory_.path()).replaced, testing::IsEmpty());
}

TEST_F(EventReaderTest, SaysWhatIsDamagedAndGivesTheRest) {
  std::string bytes = three_scalars();
  bytes[ends_[1] + 14] ^= 1;
  write(bytes);

  const ScalarCurves found = scalars_below(directory_.path() + "/");

  ASSERT_THAT(found.damaged, SizeIs(1));
  EXPECT_EQ(found.curves.at(0).run, ".");
  EXPECT_THAT(found.curves.at(0).points, SizeIs(2));
  EXPECT_THROW(scalars_below(directory_.path() + "/nowhere"), Error);
}

}  // namespace
}  // namespace muster::event_reader_test
