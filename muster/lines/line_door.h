// Where others come to lay lines.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/lines/parcel.h"
#include "muster/lines/tcp_socket.h"

namespace muster {

enum class LineWay : uint64_t { kToDoor = 1, kFromDoor };

// What comes first on a line, from the visitor.
struct LineHello {
  uint64_t word = kWord;
  uint64_t key = 0;     // of the line
  uint64_t caller = 0;  // who this is in its calls
  LineWay way{};

  static constexpr uint64_t kWord = 0x6d7573746572'4c;
};

inline constexpr size_t kMostLines = 4;  // of one caller, each way

// A port, and the lines that were laid there. It has no thread: who has connected says so in a call, which shows that
// it may call at all, and is let in by that. Thread-safe; nothing waits.
class LineDoor {
 public:
  // `host`: where it listens. Nothing: it never does. `may_visit`: for how long somebody may have connected before it
  // calls.
  explicit LineDoor(std::optional<std::string> host, std::chrono::milliseconds may_visit = std::chrono::seconds(5))
      : host_(std::move(host)), may_visit_(may_visit) {}

  // Opened by the first who asks, if that can be.
  struct Place {
    int port = 0;  // 0: there is none
    bool ip4_only = false;
  };
  Place place() ABSL_LOCKS_EXCLUDED(mu_);
  // True: somebody has connected and said that this is its key, and is known from now on.
  bool let_in(uint64_t key) ABSL_LOCKS_EXCLUDED(mu_);
  // Those by which a caller may be sent to, if only it lays some. Null: it cannot.
  std::shared_ptr<LinesOut> to(uint64_t caller) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<LineIn> from(uint64_t key) ABSL_LOCKS_EXCLUDED(mu_);  // null: none is known
  // Forgets those who have gone, and who has come and does not call. To be called now and then.
  void sweep() ABSL_LOCKS_EXCLUDED(mu_);

  size_t lines() ABSL_LOCKS_EXCLUDED(mu_);
  void break_all() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Visitor {
    Descriptor socket;
    LineHello hello{};
    size_t got = 0;  // bytes of it
    Clock::time_point came = Clock::now();
  };

  void hear_visitors() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool admit(Visitor visitor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void drop_gone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::optional<std::string> host_;
  const std::chrono::milliseconds may_visit_;
  absl::Mutex mu_;
  TcpDoor door_ ABSL_GUARDED_BY(mu_);
  std::vector<Visitor> visitors_ ABSL_GUARDED_BY(mu_);
  struct Caller {
    std::shared_ptr<LinesOut> out = std::make_shared<LinesOut>();
    size_t in = 0;
  };
  absl::flat_hash_map<uint64_t, Caller> callers_ ABSL_GUARDED_BY(mu_);
  struct In {
    std::shared_ptr<LineIn> line;
    uint64_t caller = 0;
  };
  absl::flat_hash_map<uint64_t, In> in_ ABSL_GUARDED_BY(mu_);
  Clock::time_point swept_ ABSL_GUARDED_BY(mu_) = Clock::now();
};

}  // namespace muster
