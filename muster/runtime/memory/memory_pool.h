// Memory for the tensors of a step, used again in the next one.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <vector>

namespace muster {

// What the tensors of a process may have unless somebody says otherwise: nine tenths of the machine's memory, or of
// what its container is allowed. The rest is for all that is not a tensor.
int64_t usual_memory();

// Bytes of this process that are in memory now.
int64_t resident_memory();

// libtorch's CPU allocator, which gives large blocks back to the system as soon as they are freed. A step needs the
// same blocks again at once, and asking the kernel for their pages costs a CNN a third of its time. While a program
// runs, freed blocks stay here for the next tensor of about their size. Invariant: what is in use and what is kept
// together are at most what was once in use at the same time and kSpare; over that a new size takes the place of kept
// blocks. Thread-safe. Ops outside of programs get their memory from the system, as ever.
class MemoryPool : public c10::Allocator {
  struct Account;

 public:
  // Bytes, so that steps whose tensors differ do not take each other's blocks.
  static constexpr size_t kSpare = 32 << 20;

  // What the tensors of one run may have at the same time. A tensor that outlives the run is none of its business, and
  // one that another thread frees counts until then. Thread-safe.
  class Budget {
   public:
    explicit Budget(int64_t bytes);
    ~Budget();
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;

    int64_t used() const;

   private:
    friend MemoryPool;
    Account* const account_;
  };

  // The pool of this process. The first call makes it libtorch's allocator for the CPU.
  static MemoryPool& instance();

  // How a thread gets its memory.
  struct Mode {
    bool pooled = false;
    Budget* budget = nullptr;  // outlives the use
  };

  // While one of these lives, tensors made by this thread come from the pool, if they are pooled, and count for the
  // budget, if there is one.
  class [[nodiscard]] Use {
   public:
    explicit Use(Mode mode);
    explicit Use(bool pooled) : Use(Mode{pooled, mode_here().budget}) {}
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const Mode outer_;
  };

  static Mode mode_here();  // of this thread

  c10::DataPtr allocate(size_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // What the tensors of all runs may have together, from now on; usual_memory() until somebody says so.
  void limit_to(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives what is kept back to the system, and forgets how much was once in use: whoever needed that has gone.
  void let_go() ABSL_LOCKS_EXCLUDED(mu_);

  struct Usage {
    size_t live = 0;     // in blocks of tensors that come back here
    size_t tensors = 0;  // of these, without what their blocks have beyond them
    size_t kept = 0;     // waiting for the next tensor
    size_t peak = 0;     // the most that was live at a time, since the last let_go()
    int64_t fresh = 0;   // blocks that the system was asked for
    size_t sizes = 0;    // that are looked through for one that fits
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Block;
  MemoryPool() = default;

  static void release(void* data);
  Block* take(size_t tensor) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes blocks of at least so many bytes out of `kept_`, if there are so many.
  std::vector<Block*> take_unwanted(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void give_back(Block* block) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  size_t most_ ABSL_GUARDED_BY(mu_) = static_cast<size_t>(usual_memory());
  // By size. A size without blocks is one whose blocks are all in use.
  std::map<size_t, std::vector<Block*>> kept_ ABSL_GUARDED_BY(mu_);
  Usage usage_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
