#include "muster/data/stage_times.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "muster/base/strings.h"
#include "muster/data/dataset_node.h"
#include "muster/data/sources/source.h"

namespace muster {
namespace {

constexpr int64_t kMeasuredAtFirst = 16, kMeasuredOneIn = 16;  // calls
constexpr std::chrono::microseconds kShort(10);                // two looks at the clock are a hundredth of that
constexpr size_t kMostStages = 1'000;                          // of a description, which may come from a stranger
constexpr size_t kLongestName = 80;
constexpr double kTuneSeconds = 0.1;  // at least, and
constexpr int64_t kTuneElements = 8;  // so that what was measured is no chance
constexpr double kAhead = 0.8;        // of the time of whoever takes elements: the next one is to be there before that

using Clock = Stage::Clock;

// What this thread is at.
struct Watch {
  Stage* running = nullptr;  // the innermost stage; null: none
  int64_t weight = 0;        // of the call of the outermost one that is under way; 0: it is not measured
  int64_t laps = 0;          // stages that were begun in it
  Clock::time_point began;   // it
  Clock::time_point since;   // when `running` went on
};
thread_local Watch watch;

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string with_name(const char* step, std::string_view what) {
  return str_cat(step, " \"", what.substr(0, kLongestName), "\"");
}

// Nothing for those that hand elements on, and take no time to speak of.
std::optional<std::string> stage_name(const DatasetNode& node) {
  const DatasetOp& op = node.op();
  if (const auto* files = std::get_if<FilesOp>(&op)) return with_name("read", files->patterns.front());
  if (const auto* folder = std::get_if<ImageFolderOp>(&op)) return with_name("image_folder", folder->directory);
  if (const auto* decode = std::get_if<DecodeImagesOp>(&op)) return with_name("decode_images", decode->column);
  if (const auto* how = std::get_if<PreprocessOp>(&op)) return with_name("preprocess", how->column);
  if (const auto* parse = std::get_if<ParseOp>(&op)) {
    constexpr std::array kNames{"parse_examples", "parse_csv", "rows of parquet"};
    return kNames[parse->what.index()];
  }
  if (const auto* function = std::get_if<FunctionOp>(&op)) {
    return function->traces->name();
  }
  if (const auto* named = std::get_if<RegisteredOp>(&op)) {
    return with_name(node.inputs().empty() ? "registered" : "map_registered", named->name);
  }
  if (std::holds_alternative<NativeMapOp>(op)) return "map_native";
  if (std::holds_alternative<GeneratorOp>(op)) return "generator";
  if (std::holds_alternative<SlicesOp>(op)) return "tensors";
  if (std::holds_alternative<DigitsOp>(op)) return "synthetic_digits";
  if (std::holds_alternative<ShuffleOp>(op)) return "shuffle";
  if (std::holds_alternative<BatchOp>(op)) return "batch";
  if (std::holds_alternative<PaddedBatchOp>(op)) return "padded_batch";
  if (std::holds_alternative<BucketOp>(op)) return "bucket_by_length";
  if (std::holds_alternative<WindowOp>(op)) return "window";
  if (std::holds_alternative<UnbatchOp>(op)) return "unbatch";
  if (std::holds_alternative<CacheOp>(op)) return "cache";
  return std::nullopt;
}

}  // namespace

std::string stages_of(const DatasetNode& node) {
  std::string text;
  for (const DatasetNode* step = &node;; step = step->inputs().front().get()) {
    const std::optional<std::string> name = stage_name(*step);
    if (name) text = text.empty() ? *name : str_cat(*name, ", ", text);
    if (step->inputs().empty()) return text;
  }
}

namespace {

const char* advice_for(std::string_view stage, bool prefetches) {
  if (stage.starts_with("map") || stage.starts_with("parse") || stage.starts_with("decode"))
    return "give it more threads, {.threads = kAutoThreads}, or keep what it makes with cache()";
  if (stage.starts_with("read"))
    return prefetches ? "read several files in turn, or keep what was read with cache()"
                      : "read several files in turn, keep what was read with cache(), or add prefetch()";
  if (stage.starts_with("preprocess"))
    return prefetches ? "do it behind batch(), for many at once, or keep what it makes with cache()"
                      : "do it behind batch(), for many at once, keep what it makes with cache(), or add prefetch()";
  return prefetches ? "do less there" : "add prefetch() at the end, and do less there";
}

class MeasuredSource : public Source {
 public:
  MeasuredSource(Stage& stage, std::unique_ptr<Source> source) : stage_(stage), source_(std::move(source)) {}
  std::optional<Columns> next() override {
    const Spending spent(stage_);
    return source_->next();
  }
  bool gives_rows() const override { return source_->gives_rows(); }
  std::optional<Columns> next_rows(int64_t most) override {
    const Spending spent(stage_);
    return source_->next_rows(most);
  }
  void restart() override { source_->restart(); }
  int64_t fast_forward(int64_t count) override { return source_->fast_forward(count); }
  std::optional<int64_t> length() const override { return source_->length(); }
  int64_t drained() const override { return source_->drained(); }
  bool skip(int64_t count) override {
    const Spending spent(stage_);
    return source_->skip(count);
  }

 private:
  Stage& stage_;
  const std::unique_ptr<Source> source_;
};

}  // namespace

StageTiming Stage::timing() const {
  return {.name = name_,
          .lane = lane_,
          .threads = threads(),
          .seconds = seconds_of(Clock::duration(time_.load(std::memory_order_relaxed))),
          .elements = elements_.load(std::memory_order_relaxed)};
}

Spending::Spending(Stage& stage) : stage_(stage), outer_(watch.running) {
  if (outer_ == nullptr) {
    const int64_t call = stage.calls_.fetch_add(1, std::memory_order_relaxed);
    const bool each = call < kMeasuredAtFirst || !stage.short_.load(std::memory_order_relaxed);
    watch.weight = each ? 1 : call % kMeasuredOneIn == 0 ? kMeasuredOneIn : 0;
    watch.laps = 0;
  }
  watch.running = &stage;
  if (watch.weight == 0) return;
  const Clock::time_point now = Clock::now();
  if (outer_ == nullptr) watch.began = now;
  if (outer_ != nullptr) outer_->add((now - watch.since) * watch.weight, 0);
  watch.since = now;
  ++watch.laps;
}

Spending::~Spending() {
  watch.running = outer_;
  if (watch.weight == 0) return;
  const Clock::time_point now = Clock::now();
  stage_.add((now - watch.since) * watch.weight, watch.weight);
  watch.since = now;
  if (outer_ == nullptr) {
    stage_.short_.store(now - watch.began < watch.laps * kShort, std::memory_order_relaxed);
  }
}

NotSpending::NotSpending() : running_(std::exchange(watch.running, nullptr)) {
  if (running_ == nullptr) return;
  weight_ = watch.weight;
  laps_ = watch.laps;
  began_ = watch.began;
  if (weight_ == 0) return;
  paused_ = Clock::now();
  running_->add((paused_ - watch.since) * weight_, 0);
}

NotSpending::~NotSpending() {
  watch.running = running_;
  if (running_ == nullptr) return;
  watch.weight = weight_;
  watch.laps = laps_;
  watch.began = began_;
  if (weight_ == 0) return;
  watch.since = Clock::now();
  watch.began += watch.since - paused_;
}

Stage* StageTimes::stage_of(const DatasetNode& node, int lane) {
  std::optional<std::string> name = stage_name(node);  // may trace a function: without the lock
  if (!name) return nullptr;
  absl::MutexLock lock(&mu_);
  const auto known = of_nodes_.find(&node);
  if (known != of_nodes_.end()) return known->second;
  if (stages_.size() == kMostStages) return nullptr;
  const Parallel parallel = parallel_of(node);
  Stage& stage = stages_.emplace_back(*std::move(name), lane, possible_threads(parallel, cores_),
                                      parallel.threads == kAutoThreads);
  of_nodes_.emplace(&node, &stage);
  share_cores();
  return &stage;
}

void StageTimes::share_cores() {
  const auto count = static_cast<int>(std::ranges::count(stages_, true, &Stage::automatic_));
  automatic_ = count > 0;
  for (Stage& stage : stages_) {
    if (stage.automatic_) stage.threads_ = std::max(1, cores_ / count);
  }
}

void StageTimes::tune() {
  if (!automatic_ || elements_ - tuned_.elements < kTuneElements ||
      seconds_of(last_ - *first_) - tuned_.seconds < kTuneSeconds) {
    return;
  }
  InputTiming now = locked_timing();
  const InputTiming passed = now.since(tuned_);
  std::vector<bool> automatic;
  for (const Stage& stage : stages_) automatic.push_back(stage.automatic_);
  const std::vector<int> threads = tuned_threads(passed.stages, automatic, passed.seconds - passed.waited, cores_);
  for (size_t i = 0; i < threads.size(); ++i) stages_[i].threads_ = threads[i];
  tuned_ = std::move(now);
}

InputTiming StageTimes::timing() const {
  absl::MutexLock lock(&mu_);
  return locked_timing();
}

InputTiming StageTimes::locked_timing() const {
  InputTiming timing{.seconds = first_ ? seconds_of(last_ - *first_) : 0,
                     .waited = seconds_of(waited_),
                     .elements = elements_,
                     .stages = {}};
  for (const Stage& stage : stages_) timing.stages.push_back(stage.timing());
  return timing;
}

std::optional<std::string> StageTimes::waited(Clock::time_point begin, Clock::time_point end) {
  absl::MutexLock lock(&mu_);
  if (!first_) first_ = begin;
  last_ = end;
  waited_ += end - begin;
  ++elements_;
  tune();
  if (warned_ || elements_ < limits_.elements || seconds_of(end - *first_) < limits_.seconds) return std::nullopt;
  if (seconds_of(waited_) <= limits_.share * seconds_of(end - *first_)) return std::nullopt;
  const InputTiming timing = locked_timing();
  const StageTiming* stage = timing.bottleneck();
  if (stage == nullptr) return std::nullopt;
  warned_ = true;
  return str_cat("a dataset is slower than what takes its elements: ", timing.to_string(), "; ",
                 advice_for(stage->name, prefetches_));
}

std::unique_ptr<Source> measured(Stage* stage, std::unique_ptr<Source> source) {
  if (stage == nullptr || stage->pooled()) return source;
  return std::make_unique<MeasuredSource>(*stage, std::move(source));
}

std::vector<int> tuned_threads(const std::vector<StageTiming>& stages, const std::vector<bool>& automatic, double busy,
                               int cores) {
  std::vector<int> threads;
  std::map<int, double> lanes;
  int left = cores;
  for (size_t i = 0; i < stages.size(); ++i) {
    threads.push_back(automatic[i] ? 1 : stages[i].threads);
    if (automatic[i]) --left;
    if (!automatic[i]) lanes[stages[i].lane] += stages[i].load();
  }
  double others = busy * kAhead;
  for (const auto& [lane, load] : lanes) others = std::max(others, load);
  for (; left > 0; --left) {
    size_t slowest = stages.size();
    double longest = others;
    for (size_t i = 0; i < stages.size(); ++i) {
      if (!automatic[i] || stages[i].seconds / threads[i] <= longest) continue;
      slowest = i;
      longest = stages[i].seconds / threads[i];
    }
    if (slowest == stages.size()) break;
    ++threads[slowest];
  }
  return threads;
}

StepContexts contexts_of(const DatasetNode& node, const OpenContext& context) {
  StepContexts both{context, context};
  both.own.one_by_one = has_generator(node);
  if (context.times == nullptr) return both;
  const bool by_others = possible_threads(parallel_of(node), context.times->cores()) > 1;
  if (by_others) both.own.lane = context.times->new_lane();
  both.own.stage = context.times->stage_of(node, both.own.lane);
  both.inputs.stage = nullptr;
  const bool prefetches = std::holds_alternative<PrefetchOp>(node.op());
  if (prefetches) context.times->note_prefetch();
  if (by_others || prefetches) both.inputs.lane = context.times->new_lane();
  return both;
}

}  // namespace muster
