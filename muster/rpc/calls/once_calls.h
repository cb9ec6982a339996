#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/container/node_hash_map.h>
#include <absl/synchronization/mutex.h>
#include <absl/types/span.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/status.h"
#include "muster/rpc/calls/request_numbers.h"
#include "muster/rpc/frame.h"

namespace muster {

class RpcCall;

struct OnceCallsOptions {
  std::chrono::milliseconds grace;  // that a request runs on when nobody waits for it any more
  int64_t most_bytes;               // of answers; over that, those go of whose clients nothing was heard for longest
  std::chrono::milliseconds keep_silent;  // clients of whom nothing is heard
  // And of their answers those that are large; that they were given is remembered.
  std::chrono::milliseconds keep_large = std::chrono::minutes(2);
  size_t most_clients = 100'000;
  size_t most_numbers =
      4'000'000;  // of requests that they want; over that, as with clients, half of these are forgotten
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

// The calls that must be applied once. Who is cut off from one asks again and gets its answer, so a lost connection
// does not end the run; only a grace period without any caller does, or the callers' deadline, or that they cancel it.
//
// Each request says for which ones before it its client still wants the answers. So of every request of a client one of
// three holds: it was begun, and its answer is kept, or will be; it is wanted, and was not begun; it is done with, and
// will never be run. Of a client that was forgotten, a request that is not made for the first time is too old to tell,
// and is not run either.
// Thread-safe. Outlives its runs until they have answered.
class OnceCalls {
 public:
  explicit OnceCalls(OnceCallsOptions options);
  ~OnceCalls();

  // How far before a request those are whose answers are wanted, the farthest first.
  using Wanted = absl::Span<const uint64_t>;

  // What to run in place of `call`; nothing if its request was begun before, and `call` gets the answer of that, or if
  // it must not be run, and `call` is told so.
  std::shared_ptr<RpcCall> begin(const RequestId& id, Wanted wanted, std::shared_ptr<RpcCall> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Says the same of answers as a request with this number would, and is none.
  void acknowledge(const RequestId& id, Wanted wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // The client makes no more requests, and wants no answers. What is left of it is its number, so that a request of it
  // that comes late is not run again.
  void leave(const ClientId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Now, or when it comes: a caller's words may overtake each other.
  void cancel(const RequestId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // To be called now and then: lets go of large answers for those of whom nothing is heard.
  void look() ABSL_LOCKS_EXCLUDED(mu_);
  // Also those that still come. REQUIRES: `why` is not ok.
  void cancel_all(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  struct Counts {
    size_t clients = 0, left = 0, requests = 0, numbers = 0;
    int64_t bytes = 0;  // of answers
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Run;
  using Time = std::chrono::steady_clock::time_point;
  using Runs = absl::InlinedVector<std::shared_ptr<Run>, 4>;  // to be destroyed without the lock

  struct Request {
    uint64_t number = 0;
    std::shared_ptr<Run> run{};  // null: it was cancelled before it came
    bool finished = false;
    int64_t bytes = 0;  // of its answer
  };
  struct Client {
    Time heard{};
    int running = 0;                  // it is not forgotten while it has any
    bool leaves = false;              // as soon as it has none
    uint64_t newest = 0;              // the highest number so far
    std::vector<uint64_t> wanted{};   // the numbers before it whose answers were wanted then, ascending
    std::vector<Request> requests{};  // those of them that have come, ascending
    std::vector<std::pair<uint64_t, std::shared_ptr<Run>>> unwanted{};  // that still run

    bool wants(uint64_t number) const;
    std::vector<Request>::iterator find(uint64_t number);  // where it is, or would be
  };

  // What becomes of a call besides its run.
  struct Begun {
    Runs& dropped;
    Status& refused;    // not ok: it is told so
    Status& cancelled;  // not ok: its run is
    bool& is_first;     // of its request
  };
  std::shared_ptr<Run> find_or_begin(const RequestId& id, Wanted wanted, const std::shared_ptr<RpcCall>& call,
                                     const Begun& begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Client& find_or_add(const ClientId& id, Runs& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool too_many() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Request>::iterator add(Client& client, std::vector<Request>::iterator place, uint64_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why a request that is not known must not be run.
  Status refusal(const Client& client, uint64_t number, const RpcCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void hear(Client& client, uint64_t number, Wanted wanted, Runs& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void drop(Client& client, Request& request, Runs& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void end(const ClientId& id, Client& client, Runs& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void forget_silent(Time now, Runs& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void finish(const ClientId& id, Client& client, uint64_t number, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Of as many as are too many, but not of `latest`.
  void drop_answers(const Run* latest, std::vector<Frame>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const OnceCallsOptions options_;

  mutable absl::Mutex mu_;
  absl::node_hash_map<ClientId, Client> clients_ ABSL_GUARDED_BY(mu_);
  // When. Close together: one here and one there among what comes and goes would keep every page of the heap.
  absl::flat_hash_map<ClientId, Time> left_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t numbers_ ABSL_GUARDED_BY(mu_) = 0;                 // in `wanted` and `requests` of all clients
  Time last_forgotten_ ABSL_GUARDED_BY(mu_) = Time::min();  // when any client that was forgotten was last heard of
  Time look_again_ ABSL_GUARDED_BY(mu_) = Time::min();      // for silent ones
  Time look_for_large_ ABSL_GUARDED_BY(mu_) = Time::min();  // likewise
  Status all_cancelled_ ABSL_GUARDED_BY(mu_);               // not ok: they are
  DeadlineTimer timer_;
};

}  // namespace muster
