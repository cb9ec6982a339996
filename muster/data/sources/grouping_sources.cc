// The sources that make other numbers of elements than they take.
#include <ATen/ops/scalar_tensor.h>
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/sources/source.h"
#include "muster/data/sources/stacking.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

class BatchSource : public Source {
 public:
  BatchSource(const char* step, int64_t size, bool drop_remainder, std::optional<double> padding,
              std::unique_ptr<Source> input, const OpenContext& context)
      : step_(step),
        size_(static_cast<size_t>(size)),
        drop_remainder_(drop_remainder),
        padding_(padding),
        input_(std::move(input)),
        context_(context) {}

  std::optional<Columns> next() override {
    if (of_rows_) return next_of_rows();
    // First all elements, then memory for them: a batch may be asked to be larger than the dataset. What a run that was
    // cancelled meanwhile has taken is still there.
    while (rows_.size() < size_) {
      context_.check_open();
      std::optional<Columns> row = input_->next();
      if (!row) break;
      rows_.push_back(std::move(*row));
    }
    const absl::Cleanup taken = [this] { rows_.clear(); };
    if (rows_.empty() || (drop_remainder_ && rows_.size() < size_)) return std::nullopt;
    return stacked(rows_, step_, padding_);
  }
  void restart() override {
    rows_.clear();
    count_ = 0;
    input_->restart();
  }
  int64_t drained() const override { return input_->drained(); }
  int64_t fast_forward(int64_t count) override {
    const auto size = static_cast<int64_t>(size_);
    if (!rows_.empty() || count > std::numeric_limits<int64_t>::max() / size) return Source::fast_forward(count);
    const int64_t missing = input_->fast_forward(count * size);
    return (missing + (drop_remainder_ ? size - 1 : 0)) / size;  // the last batch may be smaller
  }

 private:
  // The same where the input has many at hand: each of `rows_` is some of them.
  std::optional<Columns> next_of_rows() {
    while (count_ < size_) {
      context_.check_open();
      std::optional<Columns> some = input_->next_rows(static_cast<int64_t>(size_ - count_));
      if (!some) break;
      count_ += static_cast<size_t>(some->at(0).sizes()[0]);
      rows_.push_back(std::move(*some));
    }
    const size_t count = std::exchange(count_, 0);
    const absl::Cleanup taken = [this] { rows_.clear(); };
    if (count == 0 || (drop_remainder_ && count < size_)) return std::nullopt;
    return joined(rows_);
  }

  const char* const step_;
  const size_t size_;
  const bool drop_remainder_;
  const std::optional<double> padding_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  const bool of_rows_ = !padding_ && input_->gives_rows();
  std::vector<Columns> rows_;  // kept for its memory
  size_t count_ = 0;           // of_rows_: in all of them
};

class BucketSource : public Source {
 public:
  BucketSource(const BucketOp& op, std::unique_ptr<Source> input, const OpenContext& context)
      : op_(op), input_(std::move(input)), context_(context), buckets_(op.batches.size()) {}

  std::optional<Columns> next() override {
    while (!ended_) {
      context_.check_open();
      std::optional<Columns> element = input_->next();
      if (!element) {
        ended_ = true;
        break;
      }
      const size_t number = bucket_of(*element);
      std::vector<Columns>& bucket = buckets_[number];
      bucket.push_back(*std::move(element));
      if (bucket.size() == static_cast<size_t>(op_.batches[number])) return taken_from(bucket);
    }
    for (std::vector<Columns>& bucket : buckets_) {
      if (op_.drop_remainder) bucket.clear();
      if (!bucket.empty()) return taken_from(bucket);
    }
    return std::nullopt;
  }
  void restart() override {
    ended_ = false;
    for (auto& bucket : buckets_) bucket.clear();
    input_->restart();
  }

 private:
  size_t bucket_of(const Columns& element) const {
    const auto column = static_cast<size_t>(op_.column);
    if (column >= element.size() || element[column].sizes().empty()) {
      throw invalid_argument("bucket_by_length: an element is ", describe(element), ", expected one whose column ",
                             op_.column, " has a length");
    }
    const auto above = std::ranges::upper_bound(op_.boundaries, element[column].sizes()[0]);
    return static_cast<size_t>(above - op_.boundaries.begin());
  }

  Columns taken_from(std::vector<Columns>& bucket) const {
    const absl::Cleanup taken = [&] { bucket.clear(); };
    return stacked(bucket, "bucket_by_length", op_.padding);
  }

  const BucketOp op_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::vector<std::vector<Columns>> buckets_;
  bool ended_ = false;
};

class UnbatchSource : public Source {
 public:
  UnbatchSource(std::unique_ptr<Source> input, const OpenContext& context)
      : input_(std::move(input)), context_(context) {}

  std::optional<Columns> next() override {
    while (row_ == rows_) {
      context_.check_open();
      drained_ = input_->drained();
      std::optional<Columns> batch = input_->next();
      if (!batch) return std::nullopt;
      batch_ = *std::move(batch);
      rows_ = rows_in(batch_);
      row_ = 0;
    }
    PlainTensors plain;
    Columns element;
    for (const Column& column : batch_) element.push_back(row_of(column, row_));
    ++row_;
    return element;
  }
  void restart() override {
    row_ = rows_ = 0;
    input_->restart();
  }
  int64_t drained() const override { return row_ == rows_ ? input_->drained() : drained_; }

 private:
  static int64_t rows_in(const Columns& batch) {
    for (const Column& column : batch) {
      if (!column.sizes().empty() && column.sizes()[0] == batch[0].sizes()[0]) continue;
      throw invalid_argument("unbatch: an element is ", describe(batch), ", expected columns with as many rows");
    }
    return batch.empty() ? 0 : batch[0].sizes()[0];
  }

  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  Columns batch_;
  int64_t row_ = 0, rows_ = 0;
  int64_t drained_ = 0;  // before this batch
};

class EnumerateSource : public Source {
 public:
  EnumerateSource(int64_t first, std::unique_ptr<Source> input)
      : first_(static_cast<uint64_t>(first)), next_(first_), input_(std::move(input)) {}

  std::optional<Columns> next() override {
    const uint64_t number = next_++;  // one that cannot be made has one, too
    std::optional<Columns> element = input_->next();
    if (!element) return std::nullopt;
    PlainTensors plain;
    element->insert(element->begin(), at::scalar_tensor(static_cast<int64_t>(number), at::TensorOptions(at::kLong)));
    return element;
  }
  void restart() override {
    next_ = first_;
    input_->restart();
  }
  int64_t drained() const override { return input_->drained(); }
  bool skip(int64_t count) override {
    next_ += static_cast<uint64_t>(count);
    return input_->skip(count);
  }

 private:
  const uint64_t first_;
  uint64_t next_;
  const std::unique_ptr<Source> input_;
};

class WindowSource : public Source {
 public:
  WindowSource(const WindowOp& op, std::unique_ptr<Source> input, const OpenContext& context)
      : op_(op), input_(std::move(input)), context_(context) {}

  std::optional<Columns> next() override {
    const auto size = static_cast<size_t>(op_.size);
    while (!ended_ && rows_.size() < size) {
      context_.check_open();
      if (due_ > 0) {
        ended_ = !input_->skip(due_);
        due_ = 0;
        continue;
      }
      if (std::optional<Columns> element = input_->next()) {
        rows_.push_back(*std::move(element));
      } else {
        ended_ = true;
      }
    }
    if (rows_.empty() || (op_.drop_remainder && rows_.size() < size)) return std::nullopt;
    Columns window = stacked(rows_, "window");
    const size_t left = std::min(rows_.size(), static_cast<size_t>(op_.shift));
    rows_.erase(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(left));
    due_ = op_.shift - static_cast<int64_t>(left);
    return window;
  }
  void restart() override {
    rows_.clear();
    due_ = 0;
    ended_ = false;
    input_->restart();
  }

 private:
  const WindowOp op_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::vector<Columns> rows_;
  int64_t due_ = 0;  // to leave out before the next one
  bool ended_ = false;
};

class SampleSource : public Source {
 public:
  SampleSource(const SampleOp& op, std::vector<std::unique_ptr<Source>> inputs, const OpenContext& context)
      : weights_(op.weights), seed_(op.seed ? *op.seed : context.fresh_seed()), inputs_(std::move(inputs)) {
    begin();
  }

  std::optional<Columns> next() override {
    while (true) {
      double sum = 0;
      for (const double weight : left_) sum += weight;
      if (!(sum > 0)) return std::nullopt;
      // Not a distribution of the standard library, which every one makes in its own way: a seed means one order.
      double drawn = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
      size_t number = 0;
      while (number + 1 < left_.size() && (left_[number] == 0 || drawn >= left_[number])) drawn -= left_[number++];
      while (left_[number] == 0) --number;  // rounding
      if (std::optional<Columns> element = inputs_[number]->next()) return element;
      left_[number] = 0;
    }
  }
  void restart() override {
    for (const auto& input : inputs_) input->restart();
    left_ = weights_;
    random_.seed(seed_of_round(seed_, ++round_));
  }

 private:
  void begin() {
    random_.seed(seed_);
    left_ = weights_;
  }

  const std::vector<double> weights_;
  const uint64_t seed_;
  const std::vector<std::unique_ptr<Source>> inputs_;
  std::mt19937_64 random_;
  std::vector<double> left_;  // 0: it has ended
  uint64_t round_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_op(const BatchOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<BatchSource>("batch", op.size, op.drop_remainder, std::nullopt, std::move(input), context);
}

std::unique_ptr<Source> open_op(const PaddedBatchOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<BatchSource>("padded_batch", op.size, op.drop_remainder, op.padding, std::move(input),
                                       context);
}

std::unique_ptr<Source> open_op(const BucketOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<BucketSource>(op, std::move(input), context);
}

std::unique_ptr<Source> open_op(const UnbatchOp&, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<UnbatchSource>(std::move(input), context);
}

std::unique_ptr<Source> open_op(const EnumerateOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<EnumerateSource>(op.first, std::move(input));
}

std::unique_ptr<Source> open_op(const WindowOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<WindowSource>(op, std::move(input), context);
}

std::unique_ptr<Source> open_sample(const SampleOp& op, std::vector<std::unique_ptr<Source>> inputs,
                                    const OpenContext& context) {
  return std::make_unique<SampleSource>(op, std::move(inputs), context);
}

}  // namespace muster
