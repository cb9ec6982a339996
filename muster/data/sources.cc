#include "muster/data/sources.h"

#include <ATen/ops/empty.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/data/digits.h"
#include "muster/data/source.h"
#include "muster/runtime/tensors.h"
#include "muster/runtime/variable_files.h"
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

  std::optional<Columns> next() final {
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
  virtual Columns element(uint64_t i) = 0;

  const uint64_t count_;
  uint64_t next_ = 0;
};

class RangeSource : public NumberedSource {
 public:
  explicit RangeSource(const RangeOp& op) : NumberedSource(op.count()), op_(op) {}

 private:
  Columns element(uint64_t i) override {
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
  Columns element(uint64_t i) override {
    Columns slices;
    slices.reserve(tensors_.size());
    for (const at::Tensor& tensor : tensors_) slices.push_back(tensor.select(0, static_cast<int64_t>(i)));
    return slices;
  }

  const std::vector<at::Tensor> tensors_;
};

// Read where it is opened, and only then.
std::vector<at::Tensor> arrays_of(const NumpyOp& op) {
  std::vector<at::Tensor> arrays;
  std::vector<std::string> names;
  for (auto& [name, array] : read_numpy(op.path)) {
    if (array.dim() == 0 || (!arrays.empty() && array.size(0) != arrays[0].size(0))) {
      throw invalid_argument("file \"", op.path, "\": the array \"", name, "\" is ", spec_of(array).to_string(),
                             ", expected one with as many slices as the first");
    }
    names.push_back(name);
    arrays.push_back(std::move(array));
  }
  if (names != op.names)
    throw failed_precondition("file \"", op.path, "\": it has other arrays than where it was described");
  return arrays;
}

class WholeSource : public NumberedSource {
 public:
  explicit WholeSource(const WholeOp& op) : NumberedSource(1), element_(op.element) {}

 private:
  Columns element(uint64_t) override { return {element_.begin(), element_.end()}; }

  const Element element_;
};

class DigitsSource : public NumberedSource {
 public:
  explicit DigitsSource(const DigitsOp& op) : NumberedSource(static_cast<uint64_t>(op.count)), seed_(op.seed) {}

 private:
  Columns element(uint64_t i) override {
    at::Tensor picture = at::empty({kDigitPoints}, at::TensorOptions(at::kFloat));
    const int label = draw_digit(seed_, i, picture.mutable_data_ptr<float>());
    return {std::move(picture), int64_scalar(label)};
  }

  const uint64_t seed_;
};

class GeneratorSource : public Source {
 public:
  explicit GeneratorSource(const GeneratorOp& op) : start_(op.start) {}

  std::optional<Columns> next() override {
    if (ended_) return std::nullopt;
    c10::AutoGradMode no_gradients(false);
    if (!generator_) {
      generator_ = start_();
      if (!generator_) throw invalid_argument("generator: the function returned an empty generator");
    }
    std::optional<Element> element = generator_();
    ended_ = !element;
    if (!element) return std::nullopt;
    check(*element);
    return Columns(element->begin(), element->end());
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
  OpenedDataset(std::shared_ptr<const DatasetNode> node, Worker& worker,
                std::optional<std::vector<std::string>> readable = {})
      : node_(std::move(node)),
        readable_(std::move(readable)),
        source_(muster::open(*node_, {.runner = worker,
                                      .closed = closed_,
                                      .draws = next_draws(worker),
                                      .readable = readable_ ? &*readable_ : nullptr})) {}
  ~OpenedDataset() override { close(); }

  void close() override { closed_ = true; }

  std::optional<Element> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    Untraced untraced;
    absl::MutexLock lock(&mu_);
    try {
      std::optional<Columns> element = source_->next();
      if (!element) return std::nullopt;
      return tensors_of(*std::move(element), "a dataset");
    } catch (const Error&) {
      throw;
    } catch (...) {
      throw Error(status_of(std::current_exception()));
    }
  }

 private:
  const std::shared_ptr<const DatasetNode> node_;
  const std::optional<std::vector<std::string>> readable_;
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

void OpenContext::check_readable(const std::string& path) const {
  if (readable == nullptr) return;
  path_below(*readable, path,
             {.things = "files of datasets", .allowed_by = "muster server --data, LocalWorkerOptions::data"});
}

std::unique_ptr<Source> open_op(const RangeOp& op) { return std::make_unique<RangeSource>(op); }
std::unique_ptr<Source> open_op(const SlicesOp& op) { return std::make_unique<SlicesSource>(op); }
std::unique_ptr<Source> open_op(const NumpyOp& op, const OpenContext& context) {
  context.check_readable(op.path);
  return std::make_unique<SlicesSource>(SlicesOp{arrays_of(op)});
}
std::unique_ptr<Source> open_op(const WholeOp& op) { return std::make_unique<WholeSource>(op); }
std::unique_ptr<Source> open_op(const GeneratorOp& op) { return std::make_unique<GeneratorSource>(op); }
std::unique_ptr<Source> open_op(const DigitsOp& op) { return std::make_unique<DigitsSource>(op); }

namespace {

// Whether it gives the elements that it takes, each as it was.
bool passes_on(const DatasetOp& op) {
  return std::holds_alternative<ShuffleOp>(op) || std::holds_alternative<RepeatOp>(op) ||
         std::holds_alternative<TakeOp>(op) || std::holds_alternative<SkipOp>(op) ||
         std::holds_alternative<ShardOp>(op) || std::holds_alternative<ShardHintOp>(op) ||
         std::holds_alternative<PrefetchOp>(op);
}

// Whether it does to a batch what it does to each of its elements.
bool may_come_late(const DatasetOp& op) {
  if (const auto* parse = std::get_if<ParseOp>(&op)) return !parse->ignore_errors;
  if (const auto* preprocess = std::get_if<PreprocessOp>(&op)) return preprocess->how->elementwise();
  return std::holds_alternative<SelectOp>(op);
}

// The steps before a batch that can be done after it, the last first.
std::vector<const DatasetNode*> late_steps(const DatasetNode& batch) {
  std::vector<const DatasetNode*> late;
  for (const DatasetNode* node = &batch.input(); passes_on(node->op()) || may_come_late(node->op());
       node = &node->input()) {
    if (may_come_late(node->op())) late.push_back(node);
  }
  return late;
}

std::unique_ptr<Source> open_step(const DatasetNode& node, std::unique_ptr<Source> input, const OpenContext& context) {
  if (const auto* parse = std::get_if<ParseOp>(&node.op())) return open_op(*parse, std::move(input), context);
  const std::vector<std::string>& names = node.input().names().names;
  auto place_of = [&](const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  if (const auto* preprocess = std::get_if<PreprocessOp>(&node.op())) {
    auto change = [how = preprocess->how, place = place_of(preprocess->column)](Columns columns) {
      columns.at(place) = (*how)(columns.at(place));
      return columns;
    };
    return open_change(std::move(change), 1, std::move(input));
  }
  std::vector<size_t> places;
  for (const std::string& name : std::get<SelectOp>(node.op()).columns) places.push_back(place_of(name));
  auto change = [places = std::move(places)](const Columns& columns) {
    Columns some;
    some.reserve(places.size());
    for (const size_t place : places) some.push_back(columns.at(place));
    return some;
  };
  return open_change(std::move(change), 1, std::move(input));
}

std::unique_ptr<Source> open_batch(const DatasetNode& node, const OpenContext& context) {
  const std::vector<const DatasetNode*> late = late_steps(node);
  OpenContext early = context;
  early.left_out = &late;
  std::unique_ptr<Source> source = open_op(std::get<BatchOp>(node.op()), open(node.input(), early), context);
  for (auto step = late.rbegin(); step != late.rend(); ++step) source = open_step(**step, std::move(source), context);
  return source;
}

}  // namespace

std::unique_ptr<Source> open(const DatasetNode& node, const OpenContext& context) {
  if (context.left_out != nullptr && std::ranges::find(*context.left_out, &node) != context.left_out->end()) {
    return open(node.input(), context);
  }
  auto input = [&] { return open(node.input(), context); };
  auto inputs = [&] {
    std::vector<std::unique_ptr<Source>> opened;
    for (const auto& each : node.inputs()) opened.push_back(open(*each, context));
    return opened;
  };
  return std::visit(Overloaded{
                        [&](const FunctionOp& op) {
                          if (op.filters && context.example) return input();
                          return open_function(op, node.program(), input(), context);
                        },
                        [&](const ZipOp&) { return open_zip(inputs()); },
                        [&](const ConcatenateOp&) { return open_concatenate(inputs()); },
                        [&](const SampleOp& op) { return open_sample(op, inputs()); },
                        [&](const FilesOp& op) { return open_op(op, context); },
                        [&](const NumpyOp& op) { return open_op(op, context); },
                        [&](const ImageFolderOp& op) { return open_op(op, context); },
                        [&](const DecodeImagesOp& op) {
                          const std::vector<std::string>& names = node.names().names;
                          const auto place = std::ranges::find(names, op.column) - names.begin();
                          return open_decode(op, static_cast<size_t>(place), input(), context);
                        },
                        [&](const ShardHintOp&) { return input(); },
                        [&](const BatchOp&) { return open_batch(node, context); },
                        [&](const ParseOp&) { return open_step(node, input(), context); },
                        [&](const PreprocessOp&) { return open_step(node, input(), context); },
                        [&](const SelectOp&) { return open_step(node, input(), context); },
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

std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker,
                                           std::vector<std::string> readable) {
  return std::make_unique<OpenedDataset>(parse_dataset(description).node(), worker, std::move(readable));
}

}  // namespace muster
