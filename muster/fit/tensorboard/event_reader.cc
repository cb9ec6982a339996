#include "muster/fit/tensorboard/event_reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "muster/fit/event.pb.h"

namespace muster {
namespace {

// As files of TensorFlow 2 have it: a tensor with one number.
std::optional<double> number_of(const proto::EventTensor& tensor) {
  auto from_content = [&]<class Number>(Number number) -> std::optional<double> {
    if (tensor.content().size() != sizeof(number)) return std::nullopt;
    std::memcpy(&number, tensor.content().data(), sizeof(number));
    return static_cast<double>(number);
  };
  if (tensor.type() == proto::EventTensor::FLOAT32) {
    return tensor.floats_size() == 1 ? tensor.floats(0) : from_content(float{});
  }
  if (tensor.type() == proto::EventTensor::FLOAT64) {
    return tensor.doubles_size() == 1 ? tensor.doubles(0) : from_content(double{});
  }
  return std::nullopt;
}

struct ScalarFile {
  std::string run;
  std::vector<ScalarEvent> events{};
};

// What can be read of it.
ScalarFile scalars_of(const std::string& path, std::string run, std::vector<Status>& damaged) {
  ScalarFile file{std::move(run)};
  try {
    EventReader reader(path);
    while (true) {
      try {
        std::optional<ScalarEvent> event = reader.next();
        if (!event) break;
        file.events.push_back(*std::move(event));
      } catch (const Error& error) {
        if (error.code() != StatusCode::kDataLoss) throw;
        damaged.push_back(error.status());
      }
    }
  } catch (const Error& error) {
    damaged.push_back(error.status());
  }
  return file;
}

}  // namespace

EventReader::EventReader(const std::string& path)
    : records_(open_records(path, {.kind = RecordFormat::Kind::kTfRecord, .growing = true})) {}

std::optional<ScalarEvent> EventReader::next() {
  while (waiting_.empty()) {
    const std::optional<std::string_view> record = records_->next();
    if (!record) return std::nullopt;
    proto::Event event;
    if (!event.ParseFromArray(record->data(), static_cast<int>(record->size()))) {
      throw data_loss(records_->where(), ": its ", record->size(), " bytes are no event");
    }
    for (const proto::EventSummary::Value& value : event.summary().value()) {
      std::optional<double> number;
      if (value.has_simple_value()) {
        number = value.simple_value();
      } else if (value.metadata().plugin().name() == "scalars" || value.metadata().plugin().name().empty()) {
        // Only the first value of a tag says which plugin it is for.
        number = number_of(value.tensor());
      }
      if (number) waiting_.push_back({value.tag(), event.step(), event.wall_time(), *number});
    }
  }
  ScalarEvent first = std::move(waiting_.front());
  waiting_.pop_front();
  return first;
}

ScalarCurves scalars_below(const std::string& directory) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(directory)) {
    throw not_found("directory \"", directory, "\": ",
                    fs::exists(directory) ? "is a file, expected the directory that it is in" : "there is none");
  }
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(directory, fs::directory_options::skip_permission_denied)) {
    const bool named = entry.path().filename().string().find("tfevents") != std::string::npos;
    if (named && entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());

  ScalarCurves all{.files = static_cast<int64_t>(paths.size())};
  std::vector<ScalarFile> files;
  for (const fs::path& path : paths) {
    std::string run = path.parent_path().lexically_relative(fs::path(directory) / "").lexically_normal().string();
    files.push_back(scalars_of(path.string(), std::move(run), all.damaged));
  }
  std::erase_if(files, [](const ScalarFile& file) { return file.events.empty(); });
  // Names have whole seconds only, and then numbers of processes, which say nothing.
  std::ranges::stable_sort(files, {}, [](const ScalarFile& file) { return file.events.front().wall_time; });

  std::map<std::pair<std::string, std::string>, std::map<int64_t, ScalarEvent>> points;
  std::map<std::string, int64_t> first_steps;  // by run, of the files so far
  for (ScalarFile& file : files) {
    const auto least = std::ranges::min_element(file.events, {}, [](const ScalarEvent& event) { return event.step; });
    const int64_t first = least->step;
    const auto [before, is_new] = first_steps.emplace(file.run, first);
    std::set<std::string> begun;
    for (ScalarEvent& event : file.events) {
      auto& by_step = points[{event.tag, file.run}];
      if (begun.insert(event.tag).second) {
        // What was written later is of somebody who writes at the same time.
        const size_t gone = std::erase_if(by_step, [&](const auto& point) {
          return point.first >= event.step && point.second.wall_time <= event.wall_time;
        });
        if (gone > 0 && by_step.empty() && first <= before->second) all.replaced.insert(file.run);
      }
      const auto [place, is_first] = by_step.try_emplace(event.step, event);
      if (!is_first && place->second.wall_time <= event.wall_time) place->second = std::move(event);
    }
    before->second = std::min(before->second, first);
  }
  for (auto& [name, by_step] : points) {
    ScalarCurve& curve = all.curves.emplace_back(ScalarCurve{.tag = name.first, .run = name.second});
    for (auto& [step, event] : by_step) curve.points.push_back(std::move(event));
  }
  return all;
}

}  // namespace muster
