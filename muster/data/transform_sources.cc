// The sources that take their elements from others and need no functions.
#include <ATen/ops/empty.h>
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>

#include "muster/base/status.h"
#include "muster/data/source.h"
#include "muster/runtime/memory_pool.h"
#include "muster/runtime/run_options.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

class BatchSource : public Source {
 public:
  BatchSource(const BatchOp& op, std::unique_ptr<Source> input, const OpenContext& context)
      : size_(static_cast<size_t>(op.size)),
        drop_remainder_(op.drop_remainder),
        input_(std::move(input)),
        context_(context) {}

  std::optional<Element> next() override {
    // First all elements, then memory for them: a batch may be asked to be larger than the dataset. What a run that was
    // cancelled meanwhile has taken is still there.
    while (rows_.size() < size_) {
      context_.check_open();
      std::optional<Element> row = input_->next();
      if (!row) break;
      rows_.push_back(std::move(*row));
    }
    const absl::Cleanup taken = [this] { rows_.clear(); };
    if (rows_.empty() || (drop_remainder_ && rows_.size() < size_)) return std::nullopt;
    check_rows();
    PlainTensors plain;
    MemoryPool::Use pool(true);
    Element batch;
    for (size_t column = 0; column < rows_[0].size(); ++column) batch.push_back(stacked(column));
    return batch;
  }
  void restart() override {
    rows_.clear();
    input_->restart();
  }

 private:
  void check_rows() const {
    for (size_t row = 1; row < rows_.size(); ++row) {
      bool same = rows_[row].size() == rows_[0].size();
      for (size_t column = 0; same && column < rows_[0].size(); ++column) {
        const at::Tensor &one = rows_[row][column], &first = rows_[0][column];
        same = one.scalar_type() == first.scalar_type() && one.sizes() == first.sizes();
      }
      if (!same) {
        throw invalid_argument("batch: element ", row, " of a batch is ", describe(specs_of(rows_[row])),
                               ", but the first one is ", describe(specs_of(rows_[0])),
                               "; expected elements of one shape and type, which a map before it can make");
      }
    }
  }

  at::Tensor stacked(size_t column) const {
    const at::Tensor& first = rows_[0][column];
    std::vector<int64_t> sizes{static_cast<int64_t>(rows_.size())};
    sizes.insert(sizes.end(), first.sizes().begin(), first.sizes().end());
    at::Tensor whole = at::empty(sizes, first.options());
    const size_t bytes = first.nbytes();
    for (size_t row = 0; row < rows_.size() && bytes > 0; ++row) {
      const at::Tensor& from = rows_[row][column];
      if (whole.is_cpu() && from.is_cpu() && from.is_contiguous() && !from.is_conj() && !from.is_neg()) {
        std::memcpy(static_cast<char*>(whole.mutable_data_ptr()) + row * bytes, from.const_data_ptr(), bytes);
      } else {
        whole.select(0, static_cast<int64_t>(row)).copy_(from);
      }
    }
    return whole;
  }

  const size_t size_;
  const bool drop_remainder_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::vector<Element> rows_;  // kept for its memory
};

class ShuffleSource : public Source {
 public:
  ShuffleSource(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context)
      : size_(static_cast<size_t>(op.buffer)),
        seed_(op.seed.value_or(random_id())),
        reshuffle_(op.reshuffle),
        input_(std::move(input)),
        context_(context),
        random_(seed_) {}

  std::optional<Element> next() override {
    while (!ended_ && buffer_.size() < size_) {
      context_.check_open();
      if (std::optional<Element> element = input_->next()) {
        buffer_.push_back(std::move(*element));
      } else {
        ended_ = true;
      }
    }
    if (buffer_.empty()) return std::nullopt;
    // Not std::uniform_int_distribution, which every standard library makes in its own way: a seed means one order.
    const auto drawn = static_cast<size_t>((static_cast<unsigned __int128>(random_()) * buffer_.size()) >> 64);
    std::swap(buffer_[drawn], buffer_.back());
    Element element = std::move(buffer_.back());
    buffer_.pop_back();
    return element;
  }
  void restart() override {
    buffer_.clear();
    ended_ = false;
    if (!reshuffle_) random_.seed(seed_);
    input_->restart();
  }

 private:
  const size_t size_;
  const uint64_t seed_;
  const bool reshuffle_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  std::mt19937_64 random_;
  std::vector<Element> buffer_;
  bool ended_ = false;
};

class RepeatSource : public Source {
 public:
  RepeatSource(const RepeatOp& op, std::unique_ptr<Source> input)
      : count_(op.count), input_(std::move(input)), left_(count_) {}

  std::optional<Element> next() override {
    while (left_ != 0) {
      if (std::optional<Element> element = input_->next()) {
        empty_ = false;
        return element;
      }
      if (left_) --*left_;
      if (empty_) left_ = 0;  // so would be all rounds that follow
      if (left_ == 0) break;
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

 private:
  const std::optional<int64_t> count_;
  const std::unique_ptr<Source> input_;
  std::optional<int64_t> left_;  // rounds, with the one under way
  bool empty_ = true;            // is this round so far
};

class TakeSource : public Source {
 public:
  TakeSource(const TakeOp& op, std::unique_ptr<Source> input)
      : count_(op.count), input_(std::move(input)), left_(count_) {}

  std::optional<Element> next() override {
    if (left_ == 0) return std::nullopt;
    std::optional<Element> element = input_->next();
    left_ = element ? left_ - 1 : 0;
    return element;
  }
  void restart() override {
    left_ = count_;
    input_->restart();
  }

 private:
  const int64_t count_;
  const std::unique_ptr<Source> input_;
  int64_t left_;
};

// Leaves out `first` elements, then `between` after each one that it hands out: skip and shard.
class EveryNthSource : public Source {
 public:
  EveryNthSource(int64_t first, int64_t between, std::unique_ptr<Source> input)
      : first_(first), between_(between), input_(std::move(input)), due_(first) {}

  std::optional<Element> next() override {
    if (due_ > 0 && !input_->skip(due_)) return std::nullopt;
    due_ = 0;
    std::optional<Element> element = input_->next();
    due_ = between_;
    return element;
  }
  void restart() override {
    due_ = first_;
    input_->restart();
  }

 private:
  const int64_t first_;
  const int64_t between_;
  const std::unique_ptr<Source> input_;
  int64_t due_;  // to leave out before the next one
};

class ZipSource : public Source {
 public:
  explicit ZipSource(std::vector<std::unique_ptr<Source>> inputs) : inputs_(std::move(inputs)) {}

  std::optional<Element> next() override {
    Element all;
    for (const auto& input : inputs_) {
      std::optional<Element> part = ended_ ? std::nullopt : input->next();
      if (!part) {
        ended_ = true;
        return std::nullopt;
      }
      std::move(part->begin(), part->end(), std::back_inserter(all));
    }
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

  std::optional<Element> next() override {
    if (!complete_) {
      std::optional<Element> element = input_->next();
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
  std::vector<Element> elements_;
  bool complete_ = false;  // all elements are there, and the input is not needed any more
  size_t position_ = 0;    // of the next one, once complete
};

}  // namespace

std::unique_ptr<Source> open_op(const BatchOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<BatchSource>(op, std::move(input), context);
}

std::unique_ptr<Source> open_op(const ShuffleOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return std::make_unique<ShuffleSource>(op, std::move(input), context);
}

std::unique_ptr<Source> open_op(const RepeatOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<RepeatSource>(op, std::move(input));
}

std::unique_ptr<Source> open_op(const TakeOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<TakeSource>(op, std::move(input));
}

std::unique_ptr<Source> open_op(const SkipOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<EveryNthSource>(op.count, 0, std::move(input));
}

std::unique_ptr<Source> open_op(const ShardOp& op, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<EveryNthSource>(op.index, op.shards - 1, std::move(input));
}

std::unique_ptr<Source> open_op(const CacheOp&, std::unique_ptr<Source> input, const OpenContext&) {
  return std::make_unique<CacheSource>(std::move(input));
}

std::unique_ptr<Source> open_zip(std::vector<std::unique_ptr<Source>> inputs) {
  return std::make_unique<ZipSource>(std::move(inputs));
}

}  // namespace muster
