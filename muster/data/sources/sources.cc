#include "muster/data/sources/sources.h"

#include <ATen/ops/empty.h>
#include <absl/base/thread_annotations.h>
#include <absl/strings/str_join.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/data/digits.h"
#include "muster/data/sources/place.h"
#include "muster/data/sources/source.h"
#include "muster/data/user_code.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/splitmix.h"
#include "muster/runtime/variables/variable_files.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/runtime/worker/run_options.h"
#include "muster/trace/tracer/dispatcher_hook.h"

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
  std::optional<int64_t> length() const final {
    if (count_ > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(count_);
  }
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
      generator_ = call_user_code("generator", start_);
      if (!generator_) throw invalid_argument("generator: the function returned an empty generator");
    }
    std::optional<Element> element = call_user_code("generator", generator_);
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

// Whether the n-th element is the same each time.
bool keeps_order(const DatasetNode& node) {
  return !any_step(node, [](const DatasetNode& step) { return !parallel_of(step).deterministic; });
}

// Else somebody only reads, and waiting for elements is all that there is to do.
bool in_a_run() { return TakingFor::how().may_come_back || TakingFor::current() != nullptr; }

// Whether nobody in this process has been told of the stage that limits it: a dataset is opened anew for each epoch.
bool told_first(const InputTiming& timing) {
  static absl::Mutex mu;
  static auto& told = *new std::set<std::string>();
  const StageTiming* stage = timing.bottleneck();
  absl::MutexLock lock(&mu);
  return stage != nullptr && told.insert(stage->name).second;
}

void throw_if_unwanted(const std::atomic<bool>& closed) {
  if (closed) throw cancelled("the dataset was closed");
  TakingFor::throw_if_cancelled();
}

// The same in every execution of a program, as long as it opens its datasets in the same order.
uint64_t next_draws(const std::string& task) {
  static std::atomic<uint64_t> opened{0};
  return std::hash<std::string>()(task) + ++opened;
}

const LocalDevices* devices_of(const Worker& worker) {
  const auto* local = dynamic_cast<const LocalWorker*>(&worker);
  return local == nullptr ? nullptr : &local->devices();
}

// An opened dataset: the outermost step, and what all of them refer to.
// Thread-safe. Generators are called with the lock held: they are one sequence.
class OpenedDataset : public ElementSource {
 public:
  OpenedDataset(std::shared_ptr<const DatasetNode> node, Worker& worker,
                std::optional<DataDirectories> directories = {})
      : OpenedDataset(std::move(node), worker, worker.status(), std::move(directories)) {}
  ~OpenedDataset() override { close(); }

  void close() override {
    closed_ = true;
    if (parts_) parts_->close();
  }
  std::string position_after(int64_t taken) const override {
    if (parts_ || !keeps_order(*node_)) return {};  // whoever hands them out knows; nobody does
    absl::MutexLock lock(&mu_);
    if (begun_again_) return {};  // a place is in the first round
    if (!fingerprint_) fingerprint_ = fingerprint(described());
    return Place{begin_.seed, begin_.draws, begin_.taken + taken + failed_, *fingerprint_}.text();
  }
  bool begin_again() override {
    if (parts_) return false;  // of all who read it together, this is one
    Untraced untraced;
    absl::MutexLock lock(&mu_);
    begun_again_ = true;
    to_leave_out_ = 0;
    source_->restart();
    return true;
  }
  void used(int64_t elements) override {
    if (parts_) parts_->used(elements);
  }
  void taken_again() override {
    if (parts_) parts_->taken_again();
  }
  void hand_out(const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override {
    if (!parts_) return ElementSource::hand_out(given, cancellation, std::move(wanted));
    if (cancellation == nullptr) {
      parts_->hand_out(given, std::move(wanted));
      return;
    }
    // The caller may vanish.
    auto given_up = std::make_shared<Cancellation::Registration>();
    const uint64_t waiter =
        parts_->hand_out(given, [given_up, wanted = std::move(wanted)](const Status& status, PartsWanted parts) {
          wanted(status, std::move(parts));
        });
    if (waiter == 0) return;
    *given_up = cancellation->on_cancel([parts = parts_, waiter](const Status& why) { parts->give_up(waiter, why); });
  }
  InputTiming timing() const override { return times_.timing(); }

  std::optional<Element> next() override ABSL_LOCKS_EXCLUDED(mu_) {
    Untraced untraced;
    absl::MutexLock lock(&mu_);
    const Stage::Clock::time_point begin = Stage::Clock::now();
    try {
      if (const int64_t taken = std::exchange(to_leave_out_, 0); taken > 0) leave_out(taken);
      std::optional<Columns> element = source_->next();
      while (!element && parts_ && more_after_end()) element = source_->next();
      const std::optional<std::string> hint = times_.waited(begin, Stage::Clock::now());
      if (hint && in_a_run() && told_first(times_.timing())) MUSTER_LOG(info) << *hint;  // all is in order, only slow
      if (!element) return std::nullopt;
      Element tensors = tensors_of(*std::move(element), "a dataset", node_->names().names);
      if (parts_) parts_->returned(source_->drained());
      return tensors;
    } catch (const Error& error) {
      if (error.code() != StatusCode::kCancelled && !is_read_elsewhere(error.status())) ++failed_;
      throw;
    } catch (...) {
      ++failed_;
      throw Error(status_of(std::current_exception()));
    }
  }

 private:
  OpenedDataset(std::shared_ptr<const DatasetNode> node, Worker& worker, const WorkerStatus& status,
                std::optional<DataDirectories> directories)
      : node_(std::move(node)),
        begin_(place_of(*node_, status.task)),
        next_seed_(begin_.seed),
        to_leave_out_(begin_.taken),
        directories_(std::move(directories)),
        parts_(directories_ && is_handed_out(*node_) ? std::make_shared<PartQueue>() : nullptr),
        times_(status.cores),
        source_(muster::open(*node_, {.runner = worker,
                                      .closed = closed_,
                                      .draws = begin_.draws,
                                      .next_seed = &next_seed_,
                                      .readable = directories_ ? &directories_->readable : nullptr,
                                      .writable = directories_ ? &directories_->writable : nullptr,
                                      .devices = devices_of(worker),
                                      .parts = parts_.get(),
                                      .times = &times_})) {}

  static Place place_of(const DatasetNode& node, const std::string& task) {
    const auto* from = std::get_if<FromOp>(&node.op());
    if (from == nullptr) return {.seed = random_id(), .draws = next_draws(task)};
    Place place = Place::from(from->position);
    if (const std::string own = fingerprint(node.input()); !place.dataset.empty() && place.dataset != own) {
      throw invalid_argument("from: the position \"", from->position,
                             "\" is of another dataset, expected one of this (", own,
                             "): of the same sources and steps");
    }
    return place;
  }
  const DatasetNode& described() const { return std::holds_alternative<FromOp>(node_->op()) ? node_->input() : *node_; }
  void leave_out(int64_t taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t missing = source_->fast_forward(taken);
    if (missing == 0) return;
    throw invalid_argument("from: the position is behind ", taken, " elements, but the dataset has ", taken - missing,
                           "; expected one within it");
  }

  bool more_after_end() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!parts_->more_after_end(TakingFor::how(), [this] { throw_if_unwanted(closed_); })) return false;
    source_->restart();
    return true;
  }

  const std::shared_ptr<const DatasetNode> node_;
  const Place begin_;
  uint64_t next_seed_;
  int64_t to_leave_out_ ABSL_GUARDED_BY(mu_);
  mutable std::optional<std::string> fingerprint_ ABSL_GUARDED_BY(mu_);  // once it was asked for
  bool begun_again_ ABSL_GUARDED_BY(mu_) = false;
  int64_t failed_ ABSL_GUARDED_BY(mu_) = 0;  // elements that could not be made: they are over, too
  const std::optional<DataDirectories> directories_;
  const std::shared_ptr<PartQueue> parts_;  // if others read it, too
  std::atomic<bool> closed_{false};
  StageTimes times_;

  mutable absl::Mutex mu_;
  const std::unique_ptr<Source> source_ ABSL_PT_GUARDED_BY(mu_);
};

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;  // for clang before 17

}  // namespace

void OpenContext::check_open() const { throw_if_unwanted(closed); }

void OpenContext::check_readable(const std::string& path) const {
  if (readable == nullptr) return;
  path_below(*readable, path,
             {.things = "files of datasets",
              .allowed_by = "--data of muster server and of muster run, LocalWorkerOptions::data"});
}

void OpenContext::check_writable(const std::string& path) const {
  if (writable == nullptr) return;
  path_below(*writable, path,
             {.things = "caches of datasets",
              .allowed_by = "--storage of muster server and of muster run, LocalWorkerOptions::storage"});
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

// Whether it does to a batch what it does to each of its elements.
bool may_come_late(const DatasetOp& op) {
  if (const auto* preprocess = std::get_if<PreprocessOp>(&op)) return preprocess->how->elementwise();
  return std::holds_alternative<SelectOp>(op) || std::holds_alternative<ParseOp>(op);
}

// The steps before a batch that can be done after it, the last first. Slices of tensors can, too: until then their
// numbers stand for them.
std::vector<const DatasetNode*> late_steps(const DatasetNode& batch) {
  std::vector<const DatasetNode*> late;
  const DatasetNode* node = &batch.input();
  for (; passes_on(node->op()) || may_come_late(node->op()); node = &node->input()) {
    if (may_come_late(node->op())) late.push_back(node);
  }
  if (std::holds_alternative<SlicesOp>(node->op())) late.push_back(node);
  return late;
}

// The slices with these numbers. Those that lie after each other are not copied.
Columns slices_of(const SlicesOp& op, const at::Tensor& numbers) {
  PlainTensors plain;
  const MemoryPool::Use pool(true);
  const int64_t count = numbers.numel();
  const auto* number = numbers.const_data_ptr<int64_t>();
  bool in_a_row = true;
  for (int64_t i = 1; in_a_row && i < count; ++i) in_a_row = number[i] == number[0] + i;
  Columns slices;
  slices.reserve(op.tensors.size());
  for (const at::Tensor& tensor : op.tensors) {
    slices.emplace_back(in_a_row ? tensor.narrow(0, number[0], count) : tensor.index_select(0, numbers));
  }
  return slices;
}

std::unique_ptr<Source> open_step(const DatasetNode& node, std::unique_ptr<Source> input, const OpenContext& context) {
  if (const auto* parse = std::get_if<ParseOp>(&node.op())) return open_op(*parse, std::move(input), context);
  if (const auto* slices = std::get_if<SlicesOp>(&node.op())) {
    auto change = [op = *slices](const Columns& batch) { return slices_of(op, batch.at(0).tensor()); };
    return open_change(std::move(change), {}, std::move(input), context);
  }
  const std::vector<std::string>& names = node.input().names().names;
  auto place_of = [&](const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  if (const auto* preprocess = std::get_if<PreprocessOp>(&node.op())) {
    auto change = [how = preprocess->how, place = place_of(preprocess->column),
                   who = str_cat("column \"", preprocess->column, "\"")](Columns columns) {
      columns.at(place) = call_user_code(who, [&] { return (*how)(columns.at(place)); });
      return columns;
    };
    return open_change(std::move(change), {}, std::move(input), context);
  }
  const auto& select = std::get<SelectOp>(node.op());
  if (select.names_all) {
    auto counted = [given = select.columns](Columns columns) {
      if (columns.size() == given.size()) return columns;
      throw invalid_argument("named: ", given.size(), " names, ", absl::StrJoin(given, ", "), ", but an element has ",
                             columns.size(), " tensors; expected as many");
    };
    return open_change(std::move(counted), {}, std::move(input), context);
  }
  std::vector<size_t> places;
  for (const std::string& name : select.columns) places.push_back(place_of(name));
  auto change = [places = std::move(places)](const Columns& columns) {
    Columns some;
    some.reserve(places.size());
    for (const size_t place : places) some.push_back(columns.at(place));
    return some;
  };
  return open_change(std::move(change), {}, std::move(input), context);
}

// As the last, smaller batch would be.
template <class Batch>
Batch of_rows(Batch op, const OpenContext& context) {
  if (context.rows && !op.drop_remainder) op.size = std::min(op.size, *context.rows);
  return op;
}

// Whether each of its rounds has as many elements, whatever is drawn.
bool rounds_alike(const DatasetNode& node) {
  return !any_step(node, [](const DatasetNode& step) {
    const auto* function = std::get_if<FunctionOp>(&step.op());
    if ((function != nullptr && function->filters) || is_generator(step)) return true;
    // They count what they have seen, or how often they were begun anew.
    return std::holds_alternative<RepeatOp>(step.op()) || std::holds_alternative<DecodeImagesOp>(step.op());
  });
}

// The rows of files come parsed into what the files are said to hold: the step that would parse them must say the same,
// which a description from elsewhere need not do.
void check_parsed(const DatasetNode& batch, const std::vector<const DatasetNode*>& late) {
  const DatasetNode* files = &batch.input();
  while (!files->inputs().empty()) files = &files->input();
  const std::vector<PackedField>& held = std::get<FilesOp>(files->op()).format.fields;
  const auto parses = [](const DatasetNode* step) { return std::holds_alternative<ParseOp>(step->op()); };
  const auto step = std::ranges::find_if(late, parses);
  const auto* fields =
      step == late.end() ? nullptr : std::get_if<std::vector<PackedField>>(&std::get<ParseOp>((*step)->op()).what);
  if (std::ranges::count_if(late, parses) == 1 && fields != nullptr &&
      std::ranges::equal(*fields, held, [](const PackedField& a, const PackedField& b) { return a.is_like(b); })) {
    return;
  }
  throw invalid_argument("parse: the files before it hold other columns than it takes, expected the same, once");
}

std::unique_ptr<Source> open_batch(const DatasetNode& node, const OpenContext& context) {
  const std::vector<const DatasetNode*> late = late_steps(node);
  std::vector<StepContexts> contexts{{context, context}};  // and of each of those
  for (const DatasetNode* step : late) contexts.push_back(contexts_of(*step, contexts.back().inputs));
  const StepContexts batch = contexts_of(node, contexts.back().inputs);
  OpenContext early = batch.inputs;
  early.left_out = &late;
  const BatchOp op = of_rows(std::get<BatchOp>(node.op()), batch.own);
  std::unique_ptr<Source> source = open(node.input(), early);
  const bool parsed = source->gives_rows();
  if (parsed) check_parsed(node, late);
  source = measured(batch.own.stage, open_op(op, std::move(source), batch.own));
  for (size_t i = late.size(); i-- > 0;) {
    if (parsed && std::holds_alternative<ParseOp>(late[i]->op())) continue;
    const OpenContext& own = contexts[i + 1].own;
    source = measured(own.stage, open_step(*late[i], std::move(source), own));
  }
  return source;
}

std::unique_ptr<Source> open_node(const DatasetNode& node, const StepContexts& contexts) {
  const OpenContext& context = contexts.own;
  auto input = [&] { return open(node.input(), contexts.inputs); };
  auto inputs = [&] {
    std::vector<std::unique_ptr<Source>> opened;
    for (const auto& each : node.inputs()) opened.push_back(open(*each, contexts.inputs));
    return opened;
  };
  return std::visit(
      Overloaded{
          [&](const FunctionOp& op) {
            if (op.filters && context.example) return input();
            return open_function(op, node.input(), input(), context);
          },
          [&](const ZipOp&) { return open_zip(inputs()); },
          [&](const ConcatenateOp&) { return open_concatenate(inputs(), node.names().names); },
          [&](const SampleOp& op) { return open_sample(op, inputs(), context); },
          [&](const FilesOp& op) { return open_op(op, context); },
          [&](const NumpyOp& op) { return open_op(op, context); },
          [&](const ImageFolderOp& op) { return open_op(op, context); },
          [&](const DecodeImagesOp& op) {
            const std::vector<std::string>& names = node.names().names;
            const auto place = std::ranges::find(names, op.column) - names.begin();
            return open_decode(op, static_cast<size_t>(place), input(), context);
          },
          [&](const RepeatOp& op) { return open_repeat(op, rounds_alike(node.input()), input(), context); },
          [&](const RegisteredOp& op) {
            return node.inputs().empty() ? open_op(op) : open_registered_map(op, input(), context);
          },
          [&](const PaddedBatchOp& op) { return open_op(of_rows(op, context), input(), context); },
          [&](const CacheOp& op) {
            if (context.example) return input();
            if (!op.path.empty()) return open_file_cache(op, node.input(), contexts.inputs);
            return open_op(op, input(), context);
          },
          [&](const ShardHintOp&) { return input(); },
          [&](const FromOp&) { return input(); },
          [&](const HandOutOp& op) {
            std::unique_ptr<Source> all = input();
            const bool knows_parts = std::holds_alternative<FilesOp>(node.input().op());
            return context.parts == nullptr || knows_parts ? std::move(all) : open_ranges(op, std::move(all), context);
          },
          [&](const ParseOp&) { return open_step(node, open_good_records(node, input(), context), context); },
          [&](const PreprocessOp&) { return open_step(node, input(), context); },
          [&](const SelectOp&) { return open_step(node, input(), context); },
          [&]<class Op>(const Op& op) {
            if constexpr (requires { open_op(op); }) {
              return open_op(op);
            } else {
              constexpr bool same_elements = std::same_as<Op, ShuffleOp> || std::same_as<Op, PrefetchOp>;
              if (same_elements && context.example) return input();
              return open_op(op, input(), context);
            }
          },
      },
      node.op());
}

}  // namespace

std::unique_ptr<Source> open(const DatasetNode& node, const OpenContext& context) {
  if (context.left_out != nullptr && std::ranges::find(*context.left_out, &node) != context.left_out->end()) {
    if (const auto* slices = std::get_if<SlicesOp>(&node.op())) {
      return open_op(RangeOp{.begin = 0, .end = slices->tensors[0].size(0), .step = 1});
    }
    std::unique_ptr<Source> input = open(node.input(), context);
    if (!std::holds_alternative<ParseOp>(node.op())) return input;
    const OpenContext own = contexts_of(node, context).own;
    return measured(own.stage, open_good_records(node, std::move(input), own));
  }
  if (std::holds_alternative<BatchOp>(node.op())) return open_batch(node, context);
  const StepContexts contexts = contexts_of(node, context);
  return measured(contexts.own.stage, open_node(node, contexts));
}

uint64_t OpenContext::fresh_seed() const { return next_seed == nullptr ? 0 : SplitMix{(*next_seed)++}(); }

uint64_t seed_of_round(uint64_t seed, uint64_t round) { return round == 0 ? seed : SplitMix{seed + round}(); }

Dataset Dataset::from(const std::string& position) const {
  Place::from(position);  // throws
  return dataset_of(FromOp{position}, {node_});
}

std::unique_ptr<ElementSource> Dataset::open(Worker& worker) const {
  return std::make_unique<OpenedDataset>(node_, worker);
}

std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker,
                                           DataDirectories directories) {
  return std::make_unique<OpenedDataset>(parse_dataset(description).node(), worker, std::move(directories));
}

}  // namespace muster
