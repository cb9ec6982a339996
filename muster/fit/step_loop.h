// Takes steps over a dataset, under whichever strategy.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "muster/distribute/strategy.h"
#include "muster/fit/criteria/totals.h"
#include "muster/fit/model_input.h"
#include "muster/trace/function.h"

namespace muster {

using StepFunction = Function<std::function<at::Tensor(Iterator&)>>;

// One step, and several as one program. Both return what their examples add up to.
struct Steps {
  StepFunction one, several;
  int64_t count = 1;  // of the latter
  // Where the next program, of so many steps, is to be profiled; null: it is not. Of steps that this process takes.
  std::function<Profile*(int64_t steps)> profile = [](int64_t) { return nullptr; };
  int64_t batches = 1;  // of a replica, that each step takes

  // How many are taken next: several only if it is known that so many are left, since data that ends among them takes
  // those before with it.
  int64_t next(std::optional<int64_t> left) const { return count > 1 && left && *left >= count ? count : 1; }
  Steps one_by_one() const { return {.one = one, .several = one, .batches = batches}; }
  const StepFunction& of(int64_t steps) const { return steps == 1 ? one : several; }
};

// Goes through a dataset, epoch by epoch. For one thread.
class StepLoop {
 public:
  // What steps have returned, and how many they were. False: no more are taken, of those that nobody has begun.
  using Each = std::function<bool(const at::Tensor& sums, int64_t steps)>;

  virtual ~StepLoop() = default;
  // Opens the data for the next run(), which does it otherwise.
  void begin(std::optional<int64_t> count);
  // Whether the steps of the next run(), which has begun, are programs of one each, and will be in all later ones:
  // nobody knows where the data of a worker ends, since others share it or its description does not say.
  virtual bool always_one_by_one(std::optional<int64_t>) const { return false; }
  // Takes `count` steps, going on where the epoch before has ended; without a number, all from the beginning. Returns
  // how many there were: fewer if the data has ended.
  int64_t run(const Steps& steps, std::optional<int64_t> count, const Each& each);
  // Where the next run of so many steps goes on, as text; "" if it begins anew, or nobody knows.
  virtual std::string position() const { return {}; }
  // The first run goes on where such a loop was. A place in another dataset is passed over, with a warning.
  // REQUIRES: nothing was run.
  virtual void go_on_from(const std::string& /*position*/) {}
  // What steps over the data add up to, from its beginning to its end, or the first `count` of them. Each example
  // counts once: of what was being read when a worker was lost nothing counts, and it is read again. Throws
  // Error{kUnavailable} if workers are lost each time that some of it is.
  virtual Totals once(const Steps& steps, std::optional<int64_t> count) = 0;

 private:
  virtual void open(std::optional<int64_t> count) = 0;
  // REQUIRES: it is open.
  virtual int64_t take(const Steps& steps, std::optional<int64_t> count, const Each& each) = 0;

  bool begun_ = false;  // for the next run
};

// Throws Error{kInvalidArgument} for a dataset that cannot be read where the strategy needs it. What is shared by
// several workers is read once by all of them together. `length`: steps from its beginning to its end, if that is
// known.
std::unique_ptr<StepLoop> make_step_loop(const Strategy& strategy, std::variant<Dataset, ModelInput::Make> input,
                                         std::optional<int64_t> length = {});

}  // namespace muster
