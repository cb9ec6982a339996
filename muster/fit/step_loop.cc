#include "muster/fit/step_loop.h"

#include <deque>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/auto_shard.h"
#include "muster/distribute/cluster_coordinator.h"

namespace muster {
namespace {

using Input = std::variant<Dataset, ModelInput::Make>;

std::optional<int64_t> left(std::optional<int64_t> count, int64_t done) {
  return count ? std::optional(*count - done) : std::nullopt;
}

// All replicas take each step together, in this process or in several.
class LoopInStep : public StepLoop {
 public:
  LoopInStep(Strategy strategy, Input input) : strategy_(std::move(strategy)), input_(std::move(input)) {}

 private:
  void open(std::optional<int64_t> count) override {
    const bool goes_on = iterator_ && (count || iterator_->begin_again());
    if (!goes_on) iterator_ = distributed();
  }

  int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each) override {
    if (!count) count = length_;
    int64_t done = 0;
    while (!count || done < *count) {
      const int64_t taken = steps.next(left(count, done));
      at::Tensor sums;
      try {
        sums = steps.of(taken)(*iterator_);
      } catch (const Error& error) {
        if (error.code() != StatusCode::kOutOfRange) throw;
        if (count) {
          iterator_.reset();
        } else {
          length_ = done;
        }
        return done;
      }
      done += taken;
      each(sums, taken);
    }
    return done;
  }

  Iterator distributed() const {
    if (const auto* dataset = std::get_if<Dataset>(&input_)) return strategy_.distribute(*dataset);
    return strategy_.distribute(std::get<ModelInput::Make>(input_));
  }

  const Strategy strategy_;
  const Input input_;
  std::optional<Iterator> iterator_;
  std::optional<int64_t> length_;  // of an epoch, once one was seen
};

// Whichever worker is free takes the next step.
class LoopOnWorkers : public StepLoop {
 public:
  LoopOnWorkers(const Strategy& strategy, Input input)
      : strategy_(strategy), coordinator_(strategy_), input_(std::move(input)) {}

  int64_t lost_workers() override { return coordinator_.metrics().snapshot().worker_failures; }

 private:
  void open(std::optional<int64_t> count) override {
    if (!count || !data_) data_ = at_workers(count.has_value());
  }

  int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each) override {
    const size_t ahead = 4 * strategy_.workers().size();
    std::deque<Scheduled> under_way;
    int64_t scheduled = 0, done = 0;
    bool ended = false;
    auto fetch = [&](Scheduled& next) {
      try {
        const at::Tensor sums = next.sums.fetch();
        done += next.steps;
        each(sums, next.steps);
      } catch (const Error& error) {
        // Behind the end of the data, or behind a step that has failed, which join() will say.
        if (error.code() != StatusCode::kOutOfRange && error.code() != StatusCode::kCancelled) throw;
        ended = true;
      }
    };
    while (!ended && (!count || scheduled < *count)) {
      const int64_t taken = steps.next(left(count, scheduled));
      try {
        under_way.push_back({coordinator_.schedule(steps.of(taken), *data_), taken});
        scheduled += taken;
      } catch (const Error& error) {
        if (error.code() != StatusCode::kOutOfRange) throw;
        ended = true;
      }
      if (under_way.size() >= ahead) {
        fetch(under_way.front());
        under_way.pop_front();
      }
    }
    for (Scheduled& next : under_way) fetch(next);
    try {
      coordinator_.join();
    } catch (const Error& error) {
      if (error.code() != StatusCode::kOutOfRange) throw;
      ended = true;
    }
    if (ended) data_.reset();
    return done;
  }

  struct Scheduled {
    RemoteValue<at::Tensor> sums;
    int64_t steps;
  };

  PerWorkerDataset at_workers(bool counted) {
    if (const auto* make = std::get_if<ModelInput::Make>(&input_)) {
      return coordinator_.create_per_worker_dataset([make](InputContext context) { return (*make)(context); });
    }
    const auto& dataset = std::get<Dataset>(input_);
    // Each element by one worker, and all of them even if one dies.
    const bool shared = !counted || !is_endless(dataset);
    if (!shared || dataset.handed_out()) return coordinator_.create_per_worker_dataset(dataset);
    return coordinator_.create_per_worker_dataset(dataset.shard({}, ShardPolicy::kDynamic));
  }

  const ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  const Input input_;
  std::optional<PerWorkerDataset> data_;
};

}  // namespace

void StepLoop::begin(std::optional<int64_t> count) {
  open(count);
  begun_ = true;
}

int64_t StepLoop::run(const Steps& steps, std::optional<int64_t> count, const Each& each) {
  if (!begun_) begin(count);
  begun_ = false;
  return take(steps, count, each);
}

std::unique_ptr<StepLoop> make_step_loop(const Strategy& strategy, Input input) {
  if (strategy.servers()) return std::make_unique<LoopOnWorkers>(strategy, std::move(input));
  return std::make_unique<LoopInStep>(strategy, std::move(input));
}

}  // namespace muster
