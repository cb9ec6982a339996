#include "muster/data/sources.h"

#include <ATen/ops/empty.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/GradMode.h>

#include "muster/base/status.h"
#include "muster/data/digits.h"
#include "muster/data/source.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/dispatcher_hook.h"

namespace muster {
namespace {

at::Tensor int64_scalar(int64_t value) {
  at::Tensor tensor = at::empty({}, at::TensorOptions(at::kLong));
  *tensor.mutable_data_ptr<int64_t>() = value;
  return tensor;
}

// Element number i of `count`, in order.
class NumberedSource : public Source {
 public:
  explicit NumberedSource(uint64_t count) : count_(count) {}

  std::optional<Element> next() final {
    if (next_ >= count_) return std::nullopt;
    PlainTensors plain;
    return element(next_++);
  }
  void restart() final { next_ = 0; }
  bool skip(int64_t count) final {
    const bool enough = static_cast<uint64_t>(count) <= count_ - next_;
    next_ = enough ? next_ + static_cast<uint64_t>(count) : count_;
    return enough;
  }

 private:
  virtual Element element(uint64_t i) = 0;

  const uint64_t count_;
  uint64_t next_ = 0;
};

class RangeSource : public NumberedSource {
 public:
  explicit RangeSource(const RangeOp& op) : NumberedSource(op.count()), op_(op) {}

 private:
  Element element(uint64_t i) override {
    // Unsigned arithmetic wraps; the number itself fits.
    return {int64_scalar(static_cast<int64_t>(static_cast<uint64_t>(op_.begin) + i * static_cast<uint64_t>(op_.step)))};
  }

  const RangeOp op_;
};

class SlicesSource : public NumberedSource {
 public:
  explicit SlicesSource(const SlicesOp& op)
      : NumberedSource(static_cast<uint64_t>(op.tensors[0].size(0))), tensors_(op.tensors) {}

 private:
  Element element(uint64_t i) override {
    Element slices;
    slices.reserve(tensors_.size());
    for (const at::Tensor& tensor : tensors_) slices.push_back(tensor.select(0, static_cast<int64_t>(i)));
    return slices;
  }

  const std::vector<at::Tensor> tensors_;
};

class WholeSource : public NumberedSource {
 public:
  explicit WholeSource(const WholeOp& op) : NumberedSource(1), element_(op.element) {}

 private:
  Element element(uint64_t) override { return element_; }

  const Element element_;
};

class DigitsSource : public NumberedSource {
 public:
  explicit DigitsSource(const DigitsOp& op) : NumberedSource(static_cast<uint64_t>(op.count)), seed_(op.seed) {}

 private:
  Element element(uint64_t i) override {
    at::Tensor picture = at::empty({kDigitPoints}, at::TensorOptions(at::kFloat));
    const int label = draw_digit(seed_, i, picture.mutable_data_ptr<float>());
    return {std::move(picture), int64_scalar(label)};
  }

  const uint64_t seed_;
};

class GeneratorSource : public Source {
 public:
  explicit GeneratorSource(const GeneratorOp& op) : start_(op.start) {}

  std::optional<Element> next() override {
    if (ended_) return std::nullopt;
    c10::AutoGradMode no_gradients(false);
    if (!generator_) {
      generator_ = start_();
      if (!generator_) throw invalid_argument("generator: the function returned an empty generator");
    }
    std::optional<Element> element = generator_();
    ended_ = !element;
    if (element) check(*element);
    return element;
  }
  void restart() override {
    generator_ = nullptr;
    ended_ = false;
  }

 private:
  static void check(Element& element) {
    if (element.empty()) throw invalid_argument("generator: an element without tensors, expected at least one");
    PlainTensors plain;
    for (at::Tensor& tensor : element) {
      if (!tensor.defined()) throw invalid_argument("generator: an element with an undefined tensor");
      if (tensor.requires_grad()) tensor = tensor.detach();
    }
  }

  const std::function<Dataset::Generator()> start_;
  Dataset::Generator generator_;
  bool ended_ = false;
};

// The same in every execution of a program, as long as it opens its datasets in the same order.
uint64_t next_draws(Worker& worker) {
  static std::atomic<uint64_t> opened{0};
  return std::hash<std::string>()(worker.status().task) + ++opened;
}

// An opened dataset: the outermost step, and what all of them refer to.
// Thread-safe. Generators are called with the lock held: they are one sequence.
class OpenedDataset : public ElementSource {
 public:
  OpenedDataset(std::shared_ptr<const DatasetNode> node, Worker& worker)
      : node_(std::move(node)),
        source_(muster::open(*node_, {.runner = worker, .closed = closed_, .draws = next_draws(worker)})) {}
  ~OpenedDataset() override { close(); }

  void close() override { closed_ = true; }

  std::optional<Element> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    Untraced untraced;
    absl::MutexLock lock(&mu_);
    try {
      return source_->next();
    } catch (const Error&) {
      throw;
    } catch (...) {
      throw Error(status_of(std::current_exception()));
    }
  }

 private:
  const std::shared_ptr<const DatasetNode> node_;
  std::atomic<bool> closed_{false};

  absl::Mutex mu_;
  const std::unique_ptr<Source> source_ ABSL_PT_GUARDED_BY(mu_);
};

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;  // for clang before 17

}  // namespace

void OpenContext::check_open() const {
  if (closed) throw cancelled("the dataset was closed");
  TakingFor::throw_if_cancelled();
}

std::unique_ptr<Source> open_op(const RangeOp& op) { return std::make_unique<RangeSource>(op); }
std::unique_ptr<Source> open_op(const SlicesOp& op) { return std::make_unique<SlicesSource>(op); }
std::unique_ptr<Source> open_op(const WholeOp& op) { return std::make_unique<WholeSource>(op); }
std::unique_ptr<Source> open_op(const GeneratorOp& op) { return std::make_unique<GeneratorSource>(op); }
std::unique_ptr<Source> open_op(const DigitsOp& op) { return std::make_unique<DigitsSource>(op); }

std::unique_ptr<Source> open(const DatasetNode& node, const OpenContext& context) {
  auto input = [&] { return open(node.input(), context); };
  return std::visit(Overloaded{
                        [&](const FunctionOp& op) {
                          if (op.filters && context.example) return input();
                          return open_function(op, node.program(), input(), context);
                        },
                        [&](const ZipOp&) {
                          std::vector<std::unique_ptr<Source>> inputs;
                          for (const auto& each : node.inputs()) inputs.push_back(open(*each, context));
                          return open_zip(std::move(inputs));
                        },
                        [&]<class Op>(const Op& op) {
                          if constexpr (requires { open_op(op); }) {
                            return open_op(op);
                          } else {
                            constexpr bool same_elements = std::same_as<Op, ShuffleOp> ||
                                                           std::same_as<Op, PrefetchOp> || std::same_as<Op, CacheOp>;
                            if (same_elements && context.example) return input();
                            return open_op(op, input(), context);
                          }
                        },
                    },
                    node.op());
}

std::unique_ptr<ElementSource> Dataset::open(Worker& worker) const {
  return std::make_unique<OpenedDataset>(node_, worker);
}

std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker) {
  return parse_dataset(description).open(worker);
}

}  // namespace muster
