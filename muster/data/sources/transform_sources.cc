// The sources that take their elements from others and need no functions.
#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <random>

#include "muster/base/status.h"
#include "muster/data/sources/element_buffer.h"
#include "muster/data/sources/source.h"

namespace muster {
namespace {

class ShuffleSource : public Source {
 public:
  ShuffleSource(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context)
      : size_(static_cast<size_t>(op.buffer)),
        seed_(op.seed ? *op.seed : context.fresh_seed()),
        reshuffle_(op.reshuffle),
        input_(std::move(input)),
        context_(context),
        random_(seed_) {}

  std::optional<Columns> next() override {
    while (!ended_ && buffer_.size() < size_) {
      context_.check_open();
      const int64_t drained = input_->drained();
      if (std::optional<Columns> element = input_->next()) {
        buffer_.add(std::move(*element));
        if (context_.parts != nullptr) {
          since_.push_back(drained);
          ++kept_[drained];
        }
      } else {
        ended_ = true;
      }
    }
    if (buffer_.size() == 0) return std::nullopt;
    // Not std::uniform_int_distribution, which every standard library makes in its own way: a seed means one order.
    const auto drawn = static_cast<size_t>((static_cast<unsigned __int128>(random_()) * buffer_.size()) >> 64);
    if (context_.parts != nullptr) forget(drawn);
    return buffer_.take(drawn);
  }
  void restart() override {
    buffer_.clear();
    since_.clear();
    kept_.clear();
    ended_ = false;
    random_.seed(reshuffle_ ? seed_of_round(seed_, ++round_) : seed_);
    input_->restart();
  }
  int64_t drained() const override { return kept_.empty() ? input_->drained() : kept_.begin()->first; }

 private:
  void forget(size_t number) {
    const auto found = kept_.find(since_[number]);
    if (--found->second == 0) kept_.erase(found);
    since_[number] = since_.back();
    since_.pop_back();
  }

  const size_t size_;
  const uint64_t seed_;
  const bool reshuffle_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::mt19937_64 random_;
  uint64_t round_ = 0;
  ElementBuffer buffer_;
  std::vector<int64_t> since_;         // by element: how many parts were drained before it came
  std::map<int64_t, int64_t> kept_{};  // how many elements came since
  bool ended_ = false;
};

class RepeatSource : public Source {
 public:
  RepeatSource(const RepeatOp& op, bool rounds_alike, std::unique_ptr<Source> input, const OpenContext& context)
      : count_(op.count), rounds_alike_(rounds_alike), input_(std::move(input)), context_(context), left_(count_) {}

  std::optional<Columns> next() override {
    while (left_ != 0) {
      if (std::optional<Columns> element = input_->next()) {
        empty_ = false;
        return element;
      }
      if (left_) --*left_;
      // So would be all rounds that follow, unless others have read all of this one.
      if (empty_ && (context_.parts == nullptr || context_.parts->any_this_round())) left_ = 0;
      if (left_ == 0) break;
      context_.check_open();
      input_->restart();
      empty_ = true;
    }
    return std::nullopt;
  }
  void restart() override {
    left_ = count_;
    empty_ = true;
    input_->restart();
  }
  int64_t drained() const override { return input_->drained(); }
  // A whole round is read to know how long it is; others are left out as a whole.
  int64_t fast_forward(int64_t count) override {
    if (!rounds_alike_ || !empty_ || left_ == 0) return Source::fast_forward(count);
    int64_t length = 0;
    for (; length < count && input_->next(); ++length) context_.check_open();
    if (length > 0) empty_ = false;
    if (length == count || length == 0) return count - length;
    int64_t rounds = count / length;  // that are over
    if (left_) rounds = std::min(rounds, *left_);
    if (left_) *left_ -= rounds;
    if (left_ == 0) return count - rounds * length;
    for (int64_t round = 0; round < rounds; ++round) {
      context_.check_open();
      input_->restart();
    }
    empty_ = true;
    return Source::fast_forward(count - rounds * length);
  }

 private:
  const std::optional<int64_t> count_;
  const bool rounds_alike_;  // as long, whatever is drawn in them
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::optional<int64_t> left_;  // rounds, with the one under way
  bool empty_ = true;            // is this round so far
};

class TakeSource : public Source {
 public:
  TakeSource(const TakeOp& op, std::unique_ptr<Source> input)
      : count_(op.count), input_(std::move(input)), left_(count_) {}

  std::optional<Columns> next() override {
    if (left_ == 0) return std::nullopt;
    std::optional<Columns> element = input_->next();
    left_ = element ? left_ - 1 : 0;
    return element;
  }
  void restart() override {
    left_ = count_;
    input_->restart();
  }
  int64_t drained() const override { return input_->drained(); }

 private:
  const int64_t count_;
  const std::unique_ptr<Source> input_;
  int64_t left_;
};

// Leaves out `first` elements, then `between` after each one that it hands out: skip and shard.
class EveryNthSource : public Source {
 public:
  EveryNthSource(int64_t first, int64_t between, std::unique_ptr<Source> input, bool must_have_one = false)
      : first_(first), between_(between), must_have_one_(must_have_one), input_(std::move(input)), due_(first) {}

  std::optional<Columns> next() override {
    if (at_first_ && must_have_one_) return the_first();
    at_first_ = false;
    if (due_ > 0 && !input_->skip(due_)) return std::nullopt;
    due_ = 0;
    std::optional<Columns> element = input_->next();
    due_ = between_;
    return element;
  }
  void restart() override {
    due_ = first_;
    at_first_ = true;
    input_->restart();
  }
  int64_t drained() const override { return input_->drained(); }

 private:
  std::optional<Columns> the_first() {
    at_first_ = false;
    const bool any = first_ == 0 || input_->skip(1);
    const bool enough = any && (first_ == 0 || input_->skip(first_ - 1));
    std::optional<Columns> element = enough ? input_->next() : std::nullopt;
    if (!element && any && first_ > 0) {
      throw invalid_argument("shard: there are not more than ", first_, " elements for ", between_ + 1,
                             " pipelines, so number ", first_, " would have none; take fewer, or ShardPolicy::kOff");
    }
    due_ = between_;
    return element;
  }

  const int64_t first_;
  const int64_t between_;
  const bool must_have_one_;
  const std::unique_ptr<Source> input_;
  bool at_first_ = true;
  int64_t due_;  // to leave out before the next one
};

class ZipSource : public Source {
 public:
  explicit ZipSource(std::vector<std::unique_ptr<Source>> inputs) : inputs_(std::move(inputs)) {}

  std::optional<Columns> next() override {
    Columns all;
    std::exception_ptr failure;
    for (const auto& input : inputs_) {
      try {
        std::optional<Columns> part = ended_ ? std::nullopt : input->next();
        if (!part) {
          ended_ = true;
          return std::nullopt;
        }
        std::move(part->begin(), part->end(), std::back_inserter(all));
      } catch (...) {  // the others go on to the same place, or what follows would be paired wrongly
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
    return all;
  }
  void restart() override {
    ended_ = false;
    for (const auto& input : inputs_) input->restart();
  }

 private:
  const std::vector<std::unique_ptr<Source>> inputs_;
  bool ended_ = false;
};

class CacheSource : public Source {
 public:
  explicit CacheSource(std::unique_ptr<Source> input) : input_(std::move(input)) {}

  std::optional<Columns> next() override {
    if (!complete_) {
      std::optional<Columns> element = input_->next();
      if (element) {
        elements_.push_back(*element);
      } else {
        complete_ = true;
        position_ = elements_.size();
      }
      return element;
    }
    if (position_ == elements_.size()) return std::nullopt;
    return elements_[position_++];
  }
  void restart() override {
    position_ = 0;
    if (complete_) return;
    elements_.clear();
    input_->restart();
  }

 private:
  const std::unique_ptr<Source> input_;
  std::vector<Columns> elements_;
  bool complete_ = false;  // all elements are there, and the input is not needed any more
  size_t position_ = 0;    // of the next one, once complete
};

}  // namespace

std::unique_ptr<Source> open_op(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<ShuffleSource>(op, std::move(input), context);
}

std::unique_ptr<Source> open_repeat(const RepeatOp& op, bool rounds_alike, std::unique_ptr<Source> input,
                                    const OpenContext& context) {
  return std::make_unique<RepeatSource>(op, rounds_alike, std::move(input), context);
}

std::unique_ptr<Source> open_op(const TakeOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<TakeSource>(op, std::move(input));
}

std::unique_ptr<Source> open_op(const SkipOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<EveryNthSource>(op.count, 0, std::move(input));
}

std::unique_ptr<Source> open_op(const ShardOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<EveryNthSource>(op.index, op.shards - 1, std::move(input), op.of_all);
}

std::unique_ptr<Source> open_op(const CacheOp&, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<CacheSource>(std::move(input));
}

std::unique_ptr<Source> open_zip(std::vector<std::unique_ptr<Source>> inputs) {
  return std::make_unique<ZipSource>(std::move(inputs));
}

}  // namespace muster
