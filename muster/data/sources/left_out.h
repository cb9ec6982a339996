// What a dataset leaves out because it was asked to.
#pragma once

#include <atomic>
#include <cstdint>

#include "muster/base/log.h"
#include "muster/base/status.h"

namespace muster {

// Counts the records that are left out, and says so, unless it is to be quiet: of the first, and how many there were.
// Thread-safe.
class LeftOut {
 public:
  // `of`: what is left out at a time.
  LeftOut(const char* what, bool quiet, const char* of = "records") : what_(what), quiet_(quiet), of_(of) {}
  ~LeftOut() {
    if (count_ > 0 && !quiet_)
      MUSTER_LOG(warning) << count_ << " " << of_ << " that could not be " << what_ << " were left out";
  }
  LeftOut(const LeftOut&) = delete;
  LeftOut& operator=(const LeftOut&) = delete;
  void add(const Error& error) {
    if (count_++ == 0 && !quiet_)
      MUSTER_LOG(warning) << error.status().message() << "; it is left out, as was asked for";
  }

 private:
  const char* const what_;
  const bool quiet_;
  const char* const of_;
  std::atomic<int64_t> count_ = 0;
};

}  // namespace muster
