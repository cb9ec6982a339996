#include "muster/runtime/executor/next_element.h"

#include <algorithm>
#include <chrono>

#include "muster/base/status.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/read_ahead.h"

namespace muster {
namespace {

constexpr const char* kEndOfSequence = "muster: end of a sequence";

ElementSpec spec_of_element(const Element& element) {
  ElementSpec specs;
  for (const at::Tensor& tensor : element) specs.push_back(spec_of(tensor));
  return specs;
}

bool looks_like(const Element& element, const ElementSpec& specs) {
  if (element.size() != specs.size()) return false;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (element[i].sizes() != specs[i].sizes || element[i].scalar_type() != scalar_type_of(specs[i].dtype))
      return false;
  }
  return true;
}

std::shared_ptr<SharedSource> source_of(const FindSource& find, const at::Tensor& number) {
  if (!find) throw failed_precondition("this worker opens no sequences of examples");
  if (number.numel() != 1) throw invalid_argument("the number of a sequence is ", spec_of(number).to_string());
  return find(static_cast<uint64_t>(number.item().toLong()));
}

Element take_from(SharedSource& source, const RunOptions& options, const Taking& how) {
  const TakingFor run(options.cancellation, how);
  const AddTime waited(options.times == nullptr ? nullptr : &options.times->input);
  InputTiming before;
  if (options.profile != nullptr) before = source.timing();
  std::optional<Element> element;
  try {
    element = source.next();
  } catch (const Error& error) {
    if (is_read_elsewhere(error.status())) throw;
    // What a function of the sequence finds out about elements of its own is nothing for whoever runs this program.
    throw Error(Status(error.code(), error.status().message(), error.status().task()));
  }
  if (options.profile != nullptr) options.profile->add_input(source.timing().since(before));
  if (!element) throw sequence_ended();
  return std::move(*element);
}

// Each to its source, in their order. REQUIRES: a source for each.
void return_all(const std::vector<std::shared_ptr<SharedSource>>& sources, std::vector<Element>& elements) {
  for (; !elements.empty(); elements.pop_back()) sources[elements.size() - 1]->give_back(std::move(elements.back()));
}

}  // namespace

Error sequence_ended() {
  return Error(Status(StatusCode::kOutOfRange, "the sequence of examples has ended; add repeat() to begin again", {},
                      kEndOfSequence));
}

bool is_sequence_end(const Status& status) { return status.detail() == kEndOfSequence; }

Element TakenElements::next(const FindSource& find, const at::Tensor& number, const ElementSpec& expected,
                            const RunOptions& options) {
  const std::shared_ptr<SharedSource> source = source_of(find, number);
  Taking how;
  {
    absl::MutexLock lock(&mu_);
    how.has = share_of(source).has;
    how.needs = how.has + 1;
  }
  Element element = take_from(*source, options, how);
  {
    absl::MutexLock lock(&mu_);
    ++share_of(source).has;
  }
  if (looks_like(element, expected)) return element;
  throw invalid_argument(
      "element ", source->taken() - 1, " of its sequence is ", describe_elements({spec_of_element(element)}),
      ", but the function was traced for ", describe_elements({expected}),
      "; it is taken in the middle of a step, by a loop or a branch or after one, when it is too late to trace the "
      "function for it: let batch drop the remainder, batch(n, true), or pad the elements to one shape");
}

TakenElements::Share& TakenElements::share_of(const std::shared_ptr<SharedSource>& source) {
  const auto found = std::ranges::find(shares_, source, &Share::source);
  return found != shares_.end() ? *found : shares_.emplace_back(Share{source});
}

TakenElements::~TakenElements() {
  return_all(sources_, elements_);
  if (!began_) return;
  absl::MutexLock lock(&mu_);
  for (const Share& share : shares_) {
    if (share.has > 0) share.source->used(share.has);
  }
}

void TakenElements::take(const Plan& plan, const std::vector<at::Tensor>& arguments, const FindSource& find,
                         const RunOptions& options) {
  const auto asked = std::chrono::steady_clock::now();
  bool fits = true;
  for (const Plan::First& first : plan.first_elements) {
    sources_.push_back(source_of(find, first.argument ? arguments[*first.argument] : first.number));
  }
  {
    absl::MutexLock lock(&mu_);
    for (const auto& source : sources_) ++share_of(source).first;
  }
  for (const Plan::First& first : plan.first_elements) {
    if (options.cancellation != nullptr) options.cancellation->throw_if_cancelled();
    Profile::Clock::time_point begin;
    if (options.profile != nullptr) begin = Profile::Clock::now();
    const std::shared_ptr<SharedSource>& source = sources_[elements_.size()];
    Taking how{.may_come_back = true};
    {
      absl::MutexLock lock(&mu_);
      Share& share = share_of(source);
      how.has = share.has++;
      how.needs = share.first;
    }
    elements_.push_back(take_from(*source, options, how));
    fits = fits && looks_like(elements_.back(), plan.element_specs[elements_.size() - 1]);
    if (options.profile != nullptr) {
      options.profile->add({kNext.name, plan.lane_devices[first.lane], begin, Profile::Clock::now()});
    }
  }
  // Other workers go on while this one waits for its input, and to read once more costs little beside that wait.
  constexpr std::chrono::milliseconds kFresh{1};
  if (options.ahead != nullptr && std::chrono::steady_clock::now() - asked > kFresh) options.ahead->forget();
  if (fits) return;
  ElementSpecs found;
  for (const Element& element : elements_) found.push_back(spec_of_element(element));
  throw other_elements(found, plan.element_specs);
}

std::vector<Element> TakenElements::use(bool may_fail) {
  began_ = true;
  if (may_fail) kept_ = elements_;
  return std::exchange(elements_, {});
}

void TakenElements::give_back() {
  if (kept_.empty()) return;
  return_all(sources_, kept_);
  absl::MutexLock lock(&mu_);
  for (Share& share : shares_) share.has -= share.first;
}

}  // namespace muster
