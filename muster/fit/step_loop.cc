#include "muster/fit/step_loop.h"

#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/auto_shard.h"
#include "muster/data/cardinality.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/coordinator/part_dealer.h"
#include "muster/runtime/executor/next_element.h"

namespace muster {
namespace {

using Input = std::variant<Dataset, ModelInput::Make>;

constexpr int kMostBeginnings = 10;  // of a part of an evaluation under which workers die
constexpr int64_t kPieces = 8;       // that become of such a part, if it can be divided

constexpr size_t kLeastAhead = 4, kMostAhead = 64;  // steps of one worker that are scheduled at a time
// Between two times that whoever fetches is woken: often enough to show progress and to end, and no oftener, since each
// time takes a core from those who compute.
constexpr std::chrono::milliseconds kAwakeAgain(4), kAwakeAtLast(20);

StepLoop::Each adding_to(Totals& totals) {
  return [&totals](const at::Tensor& sums, int64_t) {
    totals.add(sums);
    return true;
  };
}

bool known_endless(const Input& input) {
  const auto* dataset = std::get_if<Dataset>(&input);
  return dataset != nullptr && is_endless(*dataset);
}

bool keeps_length(const Input& input) {
  const auto* dataset = std::get_if<Dataset>(&input);
  return dataset != nullptr && keeps_its_length(*dataset);
}

bool reads_into_cache(const Input& input) {
  const auto* dataset = std::get_if<Dataset>(&input);
  return dataset != nullptr && has_cache(*dataset);
}

std::optional<int64_t> left(std::optional<int64_t> count, int64_t done) {
  return count ? std::optional(*count - done) : std::nullopt;
}

// All replicas take each step together, in this process or in several.
class LoopInStep : public StepLoop {
 public:
  LoopInStep(Strategy strategy, Input input, std::optional<int64_t> length)
      : strategy_(std::move(strategy)),
        input_(std::move(input)),
        keeps_length_(keeps_length(input_)),
        is_sure_(length && !reads_into_cache(input_)),
        length_(length) {}

  Totals once(const Steps& steps, std::optional<int64_t> count) override {
    if (!iterator_ || !iterator_->begin_again()) iterator_ = distributed();
    // Several steps that are one program would lose those before the end.
    const bool may_end = count && !length_ && !known_endless(input_);
    Totals totals;
    const Pass pass = pass_of(may_end ? steps.one_by_one() : steps, end_of_pass(count), adding_to(totals));
    if (pass.ended) note_length(pass.steps);
    return totals;
  }

  std::string position() const override {
    const auto* dataset = std::get_if<Dataset>(&input_);
    if (!iterator_ || !strategy_.across().alone() || dataset == nullptr || has_generator(*dataset)) return {};
    try {
      return iterator_->position();
    } catch (const Error&) {  // such a sequence does not know it
      return {};
    }
  }
  void go_on_from(const std::string& position) override { begin_at_ = position; }

 private:
  void open(std::optional<int64_t> count) override {
    const bool goes_on = iterator_ && (count || iterator_->begin_again());
    if (!goes_on) iterator_ = distributed();
  }

  struct Pass {
    int64_t steps = 0;
    bool ended = false;  // the data has
  };

  int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each) override {
    count = end_of_pass(count);
    const Pass pass = pass_of(steps, count, each);
    if (pass.ended && count) iterator_.reset();
    if (pass.ended && !count) note_length(pass.steps);
    return pass.steps;
  }

  void note_length(int64_t steps) {
    length_ = steps;
    is_sure_ = keeps_length_;
  }

  // A length that is sure is the end.
  std::optional<int64_t> end_of_pass(std::optional<int64_t> count) const {
    return is_sure_ ? std::min(count.value_or(*length_), *length_) : count;
  }

  // A length that was seen says how many steps may be one program: beyond them, in a pass that is longer than that,
  // nobody knows.
  Pass pass_of(const Steps& steps, std::optional<int64_t> count, const Each& each) {
    Pass pass;
    while (!count || pass.steps < *count) {
      std::optional<int64_t> sure = count;
      if (length_) sure = std::min(count.value_or(*length_), *length_);
      if (sure && pass.steps >= *sure) sure.reset();
      const int64_t taken = steps.next(left(sure, pass.steps));
      at::Tensor sums;
      try {
        sums = steps.of(taken).run({.profile = steps.profile(taken)}, *iterator_);
      } catch (const Error& error) {
        if (!is_sequence_end(error.status())) throw;
        pass.ended = true;
        break;
      }
      pass.steps += taken;
      if (!each(sums, taken)) break;
    }
    return pass;
  }

  Iterator distributed() {
    const std::string begin_at = std::exchange(begin_at_, {});
    if (const auto* dataset = std::get_if<Dataset>(&input_)) {
      if (!begin_at.empty() && strategy_.across().alone()) {
        try {
          return strategy_.distribute(dataset->from(begin_at));
        } catch (const Error& error) {
          if (error.code() != StatusCode::kInvalidArgument) throw;
          MUSTER_LOG(warning) << "fit begins with the first element of the data: " << error.what();
        }
      }
      return strategy_.distribute(*dataset);
    }
    return strategy_.distribute(std::get<ModelInput::Make>(input_));
  }

  const Strategy strategy_;
  const Input input_;
  const bool keeps_length_;  // from pass to pass, as far as its steps say
  bool is_sure_;             // the length is where each pass ends, and nobody has to see the end
  std::optional<Iterator> iterator_;
  std::optional<int64_t> length_;  // of an epoch, as it was told, or of the last one that was seen
  std::string begin_at_{};         // where the first sequence goes on, if an earlier job was in it
};

// Whichever worker is free takes the next step; where each reads data of its own that ends, each takes steps until its
// own have ended. Several loops of one strategy, of several threads, take turns.
class LoopOnWorkers : public StepLoop {
 public:
  LoopOnWorkers(const Strategy& strategy, Input input) : strategy_(strategy), input_(std::move(input)) {}

  Totals once(const Steps& given, std::optional<int64_t> count) override {
    // As above; where workers share the data, the end comes to each of them.
    const Steps steps = count && !known_endless(input_) ? given.one_by_one() : given;
    std::vector<Piece> left(1);
    Totals all;
    while (!left.empty()) {
      Piece piece = std::move(left.back());
      left.pop_back();
      data_ = at_workers(count.has_value(), piece.position);
      const std::optional<PerWorkerDataset> data = dealt_out_ && !count ? data_ : std::nullopt;
      const int64_t lost_before = lost_workers();
      Totals here;
      take(steps, count, adding_to(here));
      if (lost_workers() == lost_before) {
        all.add(here);
        continue;
      }
      if (++piece.begun == kMostBeginnings) {
        throw unavailable("evaluate: workers were lost each of the ", piece.begun, " times that it began");
      }
      MUSTER_LOG(info) << "evaluate: a worker was lost, so what it was part of begins again: each example counts once";
      divide(piece, data ? coordinator_->position(*data) : "", left);
    }
    data_.reset();
    return all;
  }

  bool always_one_by_one(std::optional<int64_t> count) const override {
    if (!lanes_[0].worker) return !count;
    return std::none_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.elements.has_value(); });
  }

 private:
  // Of data that is handed out in parts: those that are evaluated together, from their position on; or all data.
  struct Piece {
    std::string position{};
    int64_t first = 0, end = 0;  // of the parts; both 0: all
    int begun = 0;               // times
  };
  // Who takes the steps of one sequence: all workers, or one of them.
  struct Lane {
    std::optional<int> worker{};
    size_t workers = 1;
    size_t under_way = 0;  // steps
    bool ended = false;
    // That nobody has scheduled a step for, if the description says how many there are. There may be more: a worker
    // that comes back begins again, and where several share the data each has a last batch of its own.
    std::optional<int64_t> elements{};
  };
  struct Scheduled {
    RemoteValue<at::Tensor> sums;
    int64_t steps;
    Lane* lane;
  };

  void open(std::optional<int64_t> count) override {
    if (count && data_) return;
    data_ = at_workers(count.has_value());
  }

  int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each) override {
    absl::MutexLock alone(&strategy_.servers()->one_loop);
    std::deque<Scheduled> under_way;
    try {
      const int64_t done = take(steps, count, each, under_way);
      if (all_ended()) data_.reset();
      return done;
    } catch (...) {
      std::exception_ptr error = std::current_exception();
      // What is under way ends first, and errors of it are not those of the next run.
      for (const Scheduled& next : under_way) wait(next);
      try {
        coordinator_->join();
      } catch (const Error&) {  // why the others were cancelled
        if (status_of(error).code() == StatusCode::kCancelled) error = std::current_exception();
      }
      data_.reset();
      std::rethrow_exception(error);
    }
  }

  int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each, std::deque<Scheduled>& under_way) {
    int64_t scheduled = 0, done = 0;
    bool goes_on = true, saw_end = false;
    std::optional<Status> cancelled;
    const int64_t elements_of_step = steps.batches * strategy_.num_replicas_in_sync();
    auto schedule = [&](Lane& lane) {
      const int64_t taken = steps.next(sure_steps(lane, left(count, scheduled), elements_of_step));
      try {
        under_way.push_back({coordinator_->schedule_on(lane.worker, steps.of(taken), *data_), taken, &lane});
        ++lane.under_way;
        scheduled += taken;
        if (lane.elements) *lane.elements -= taken * elements_of_step;
      } catch (const Error& error) {
        if (!is_sequence_end(error.status())) throw;
        lane.ended = true;
      }
    };
    auto fetch = [&](const Scheduled& next) {
      --next.lane->under_way;
      at::Tensor sums;
      try {
        sums = next.sums.fetch();
      } catch (const Error& error) {
        // Behind the end of the data, or behind a step that has failed, which join() will say.
        const bool behind_another = error.code() == StatusCode::kCancelled && !next.lane->worker;
        if (!is_sequence_end(error.status()) && !behind_another) throw;
        if (!behind_another) {
          saw_end = true;
        } else if (!cancelled) {
          cancelled = error.status();
        }
        next.lane->ended = true;
        scheduled -= next.steps;  // others may take them
        return;
      }
      done += next.steps;
      if (!each(sums, next.steps)) goes_on = false;
    };
    // Behind what is known to be there a step finds the end, if anything: one of each worker is enough to see it.
    auto most_under_way = [&](const Lane& lane) {
      const bool all_scheduled = lane.elements && *lane.elements < elements_of_step;
      return (all_scheduled ? size_t{1} : ahead_) * lane.workers;
    };
    while (true) {
      for (bool any = goes_on; any;) {
        any = false;
        for (Lane& lane : lanes_) {
          if (lane.ended || lane.under_way >= most_under_way(lane) || (count && scheduled >= *count)) continue;
          schedule(lane);
          any = true;
        }
      }
      if (under_way.empty()) break;
      const auto slept = std::chrono::steady_clock::now();
      const size_t some = ahead_ > kLeastAhead ? (under_way.size() + 1) / 2 : 1;
      if (some > 1) wait(under_way[some - 1], kAwakeAtLast);
      for (size_t i = 0; i < some && (i == 0 || under_way.front().sums.ready()); ++i) {
        const Scheduled next = std::move(under_way.front());
        under_way.pop_front();
        fetch(next);
      }
      const auto took = std::chrono::steady_clock::now() - slept;
      if (took < kAwakeAgain) ahead_ = std::min(ahead_ * 2, kMostAhead);
      if (took > kAwakeAtLast) ahead_ = std::max(ahead_ / 2, kLeastAhead);
    }
    saw_end = join() || saw_end;
    // A function that somebody has scheduled beside this has failed, and somebody else was told why.
    if (cancelled && !saw_end) {
      throw Error(Status(StatusCode::kCancelled,
                         str_cat("steps were cancelled, since a function that was scheduled beside them has failed: ",
                                 cancelled->message()),
                         cancelled->task()));
    }
    return done;
  }

  // How many of a lane are there without doubt. What workers share ends for each of them where that one has the last of
  // its elements, which nobody knows; what one of them has alone, where its description says.
  static std::optional<int64_t> sure_steps(const Lane& lane, std::optional<int64_t> counted, int64_t elements_of_step) {
    if (!lane.worker) return counted;
    if (!lane.elements) return std::nullopt;
    const int64_t own = *lane.elements / elements_of_step;
    return counted ? std::min(*counted, own) : own;
  }

  // Until it has ended, however that was, or the time is over.
  static void wait(const Scheduled& step, std::optional<std::chrono::milliseconds> timeout = {}) {
    try {
      step.sums.fetch(timeout);
    } catch (const Error&) {
    }
  }

  int64_t lost_workers() { return coordinator_->metrics().snapshot().worker_failures; }

  // So that what has ended without a loss stays: the longer the data, the more would have to be read again. `position`:
  // of the parts; "" if the data has none.
  static void divide(const Piece& lost, const std::string& position, std::vector<Piece>& into) {
    const std::optional<int64_t> parts = position.empty() ? std::nullopt : parts_in(position);
    const int64_t first = lost.first, end = lost.end > 0 ? lost.end : parts.value_or(0);
    const int64_t pieces = std::min(kPieces, end - first);
    if (pieces < 2) {
      into.push_back(lost);
      return;
    }
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = first + (end - first) * i / pieces, behind = first + (end - first) * (i + 1) / pieces;
      into.push_back({.position = position_before_parts(position, begin, behind), .first = begin, .end = behind});
    }
  }

  // Whether the data has ended.
  bool join() {
    try {
      coordinator_->join();
    } catch (const Error& error) {
      if (!is_sequence_end(error.status())) throw;
      return true;
    }
    return false;
  }

  bool all_ended() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.ended; });
  }

  // `position`: "" for the beginning; else of data that was dealt out.
  PerWorkerDataset at_workers(bool counted, const std::string& position = {}) {
    // Each time: the one before may have ended with a parameter server that has been restored since.
    coordinator_ = std::make_shared<ClusterCoordinator>(strategy_);
    PerWorkerDataset data = made(counted, position);
    coordinator_->open(data);  // while the chief gets ready
    return data;
  }

  PerWorkerDataset made(bool counted, const std::string& position) {
    dealt_out_ = false;
    lanes_.assign(1, {.workers = strategy_.workers().size()});
    const auto* dataset = std::get_if<Dataset>(&input_);
    if (dataset == nullptr) return of_each_worker(std::get<ModelInput::Make>(input_), counted);
    lanes_[0].elements = cardinality_of(*dataset).count;
    // Each element by one worker, and all of them even if one dies.
    const bool shared = !counted || !is_endless(*dataset);
    if (!shared) return coordinator_->create_per_worker_dataset(*dataset);
    if (const std::optional<Dataset> parts = dataset->handed_out() ? std::optional(*dataset) : in_parts(*dataset)) {
      dealt_out_ = true;
      return coordinator_->create_per_worker_dataset(*parts, position);
    }
    // Then all read it whole, in one order, and each takes every n-th element.
    const Dataset in_one_order = seeded(*dataset, random_id());
    return of_each_worker([&](InputContext context) { return in_one_order.shard(context); }, counted);
  }

  PerWorkerDataset of_each_worker(const ModelInput::Make& make, bool counted) {
    bool handed_out = false, any_endless = false, all_endless = true;
    std::vector<std::optional<int64_t>> elements(strategy_.workers().size());
    PerWorkerDataset data = coordinator_->create_per_worker_dataset([&](InputContext context) {
      Dataset made = make(context);
      elements[static_cast<size_t>(context.input_pipeline_id)] = cardinality_of(made).count;
      const bool endless = is_endless(made);
      handed_out = made.handed_out();
      any_endless = any_endless || endless;
      all_endless = all_endless && endless;
      return made;
    });
    if (any_endless && !counted) {
      throw invalid_argument(
          "the dataset that a function made for a worker has no end, so a number of steps is needed");
    }
    if (!handed_out && !all_endless) {
      lanes_.assign(elements.size(), {});
      for (size_t i = 0; i < lanes_.size(); ++i) {
        lanes_[i].worker = static_cast<int>(i);
        lanes_[i].elements = elements[i];
      }
    } else {
      lanes_[0].elements = handed_out ? elements[0] : std::nullopt;  // all of them read the same
    }
    return data;
  }

  // Handed out to whoever is free. Nothing: it counts its elements, keeps them, or has several sources.
  static std::optional<Dataset> in_parts(const Dataset& dataset) {
    try {
      return dataset.shard({}, ShardPolicy::kDynamic);
    } catch (const Error& error) {
      if (error.code() != StatusCode::kInvalidArgument) throw;
      return std::nullopt;
    }
  }

  const ParameterServerStrategy strategy_;
  std::shared_ptr<ClusterCoordinator> coordinator_;  // that of data_
  const Input input_;
  std::optional<PerWorkerDataset> data_;
  bool dealt_out_ = false;      // the data, part by part
  std::vector<Lane> lanes_;     // of it
  size_t ahead_ = kLeastAhead;  // steps of each worker
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

std::unique_ptr<StepLoop> make_step_loop(const Strategy& strategy, Input input, std::optional<int64_t> length) {
  if (strategy.servers()) return std::make_unique<LoopOnWorkers>(strategy, std::move(input));
  // Of several processes each counts steps of its own.
  return std::make_unique<LoopInStep>(strategy, std::move(input), strategy.across().alone() ? length : std::nullopt);
}

}  // namespace muster
