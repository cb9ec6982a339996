#include "muster/runtime/worker/lease_holder.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/test_wait.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing_support::eventually;

class OneWorker : public Peers {
 public:
  explicit OneWorker(milliseconds lease)
      : worker_(
            std::make_shared<LocalWorker>(LocalWorkerOptions{.devices = {.cpus = 1, .gpus = false}, .lease = lease})) {}
  std::shared_ptr<Worker> worker(const std::string&) override {
    ++asked;
    return worker_;
  }
  LocalWorker& local() { return *worker_; }

  std::atomic<int> asked{0};

 private:
  const std::shared_ptr<LocalWorker> worker_;
};

Lease of_somebody() { return {{random_id(), "somebody"}, {"theirs"}}; }

TEST(LeaseKeeper, IsOneForTheProcessAndEndsWithItsLastUser) {
  std::shared_ptr<LeaseKeeper> first = LeaseKeeper::shared();
  std::weak_ptr<LeaseKeeper> watched = first;

  EXPECT_EQ(LeaseKeeper::shared(), first);
  first.reset();

  EXPECT_TRUE(watched.expired());
}

TEST(LeaseKeeper, CallsAgainAndAgainUntilItIsTold) {
  std::shared_ptr<LeaseKeeper> keeper = LeaseKeeper::shared();
  std::atomic<int> calls{0};

  const uint64_t number = keeper->add([&] {
    ++calls;
    return milliseconds(1);
  });
  EXPECT_TRUE(eventually([&] { return calls > 3; }));
  keeper->remove(number);

  const int last = calls;
  keeper->call_now(number);
  EXPECT_EQ(calls, last);
}

TEST(LeaseHolder, KeepsWhatItsOwnerHasForAsLongAsItLives) {
  OneWorker peers{milliseconds(300)};
  {
    LeaseHolder holder(of_somebody(), peers);
    holder.hold_at("task");
    peers.local().store().declare("theirs//v", {DType::kFloat, {2}}, at::kCPU);
    peers.local().store().declare("ours//v", {DType::kFloat, {2}}, at::kCPU);
    EXPECT_TRUE(eventually([&] { return peers.asked > 5; }));  // three in a lease
    EXPECT_TRUE(peers.local().store().find("theirs//v"));
  }

  EXPECT_TRUE(eventually([&] { return peers.local().store().find("theirs//v") == nullptr; }));
  EXPECT_TRUE(peers.local().store().find("ours//v"));
}

TEST(LeaseHolder, DropsAllAtOnceWhenItIsReleased) {
  OneWorker peers{milliseconds(3'600'000)};
  LeaseHolder holder(of_somebody(), peers);
  holder.hold_at("task");
  peers.local().store().declare("theirs//v", {DType::kFloat, {2}}, at::kCPU);

  holder.release();

  EXPECT_EQ(peers.local().store().find("theirs//v"), nullptr);
}

}  // namespace
}  // namespace muster
