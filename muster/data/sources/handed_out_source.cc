#include <algorithm>

#include "muster/base/status.h"
#include "muster/data/sources/source.h"

namespace muster {
namespace {

constexpr int64_t kMostRanges =
    1024;  // so that what a lost worker had is not much, and what is said about them neither

// The elements of a range. Both numbers may be a stranger's.
int64_t range_of(int64_t length, int64_t multiple) {
  const int64_t least = std::max<int64_t>(1, length / kMostRanges + (length % kMostRanges > 0));
  if (multiple > length - least) return std::max<int64_t>(1, length);
  const int64_t beyond = least % multiple;
  return beyond == 0 ? least : least + (multiple - beyond);
}

// The elements of a source by ranges, each a part.
class RangesSource : public Source {
 public:
  RangesSource(std::unique_ptr<Source> input, int64_t length, int64_t multiple, const OpenContext& context)
      : length_(length),
        range_(range_of(length, multiple)),
        ranges_(length / range_ + (length % range_ > 0)),
        input_(std::move(input)),
        context_(context) {
    // Ranges of other batches may be as many.
    const auto other_ranges = static_cast<uint64_t>(multiple - 1) * 0x9E3779B97F4A7C15ULL;
    context_.parts->set_parts(ranges_, static_cast<uint64_t>(length_) + other_ranges);
  }

  std::optional<Columns> next() override {
    while (left_ == 0) {
      ended_ = context_.parts->taken();
      const std::optional<int64_t> part = context_.next_part();
      if (!part) return std::nullopt;
      if (*part < 0 || *part >= ranges_) throw invalid_argument("part ", *part, " of ", ranges_, " was handed out");
      const int64_t first = *part * range_;
      input_->restart();
      input_->skip(first);
      left_ = std::min(range_, length_ - first);
    }
    --left_;
    return input_->next();
  }
  void restart() override {
    left_ = 0;
    ended_ = context_.parts->taken();
    context_.parts->begin_round();
  }
  int64_t drained() const override { return left_ == 0 ? context_.parts->taken() : ended_; }

 private:
  const int64_t length_, range_, ranges_;
  const std::unique_ptr<Source> input_;
  const OpenContext context_;
  int64_t left_ = 0;   // of the part
  int64_t ended_ = 0;  // parts
};

}  // namespace

std::optional<int64_t> OpenContext::next_part() const {
  return parts->take([this] { check_open(); });
}

std::unique_ptr<Source> open_ranges(const HandOutOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  const std::optional<int64_t> length = input->length();
  if (!length) throw invalid_argument("a dataset whose elements cannot be counted is handed out in parts");
  return std::make_unique<RangesSource>(std::move(input), *length, op.rows, context);
}

}  // namespace muster
