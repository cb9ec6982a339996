// Passes make a program do less work for the same results, bit for bit unless it says otherwise. Each walks the bodies,
// too. REQUIRES for all: the program has passed check() and is not placed yet; it passes check() afterwards. None of
// them moves work to another device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// Runs one instruction whose operands are constants of the program. One constant per result value, lists flattened;
// their `value` is ignored. Nothing when it cannot say.
using Evaluate = std::function<std::optional<std::vector<Constant>>(const Program&, const Instruction&)>;

// The schema of an op that the program may not have yet; nothing when this libtorch lacks it.
using SchemaLookup = std::function<std::optional<std::string>(const std::string& op_name)>;

// Removes instructions whose results nobody uses and whose writes nobody sees, the bodies and constants that only those
// needed, and the inputs that no body reads. `saved` results of a loop that nobody uses become kNoValue, so that
// nothing is saved. The arguments and variables of the outermost program stay. A random op stays while another one
// follows, because it moves the stream for that one. Returns the number of instructions removed.
int eliminate_dead(Program& program);

// Lets instructions use what a view shows instead of the view, where that is the same: detach(x), t(t(x)), which
// autograd makes in every backward pass of a linear layer. Returns the number of views passed by; eliminate_dead
// removes them.
int cancel_views(Program& program);

// Computes equal things once: an instruction with the op, device and operands of an earlier one gives way to it, if no
// memory that matters is written in between. Equal small constants become one. Returns the number of instructions
// removed.
int merge_repeated(Program& program);

// Runs, now, what depends on constants only, if its results have at most `max_bytes` bytes together.
// Returns the number of instructions removed.
int fold_constants(Program& program, const Evaluate& evaluate, int64_t max_bytes);

// Turns updates of several variables by the same rule into one foreach op. Returns the number of instructions that it
// saved.
int fuse_updates(Program& program, const SchemaLookup& schema_of);

// w.sub_(g * number) becomes w.add_(g, -number). Rounds once where the program rounded twice, so not bit for bit.
// Returns the number of instructions removed.
int contract_updates(Program& program, const SchemaLookup& schema_of);

// Lets relu follow a max pooling instead of preceding it, which changes no value and leaves it, and its gradient, a
// fraction of the elements. Returns the number of pairs that changed places.
int pool_first(Program& program);

// Lets what tasks do together begin when its operands are there, in the order in which it was, so that it goes on while
// the rest of a backward pass is computed. Returns the number of instructions that moved.
int collect_early(Program& program);

// The same for copies to other devices, and views, of a program that is placed: a device works in the order of its
// instructions, and one that waits for a copy would wait for all that its source has to do before its first reader.
int copy_early(Program& program);

struct PassOptions {
  bool dead = true;
  bool views = true;
  bool pool = true;
  bool repeated = true;
  bool fold = true;
  bool fuse = true;
  bool early = true;
  bool contract = false;
  int64_t fold_max_bytes = 65536;
};

struct PassReport {
  int dead = 0;
  int views = 0;
  int pooled = 0;
  int repeated = 0;
  int folded = 0;
  int fused = 0;
  int contracted = 0;
  int early = 0;

  std::string to_string() const;  // "3 dead, 2 views, 1 pooled, 2 repeated, 1 folded, 4 fused, 0 contracted, 1 early"
  bool operator==(const PassReport&) const = default;
};

PassReport optimize(Program& program, const PassOptions& options, const Evaluate& evaluate,
                    const SchemaLookup& schema_of);

}  // namespace muster
