// What is left at a worker goes with its owner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/base/test_wait.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

using testing_support::Builder;
using testing_support::eventually;

class NoElements : public ElementSource {
 public:
  std::optional<Element> next() override { return std::nullopt; }
};

struct Fixture {
  // The test is the timer.
  LocalWorker worker{{.devices = {.cpus = 1, .gpus = false}, .lease = std::chrono::hours(1)}};
  const Owner owner{random_id(), "a chief"};

  ProgramHandle program(const Owner& of) {
    Builder builder;
    return worker.register_program(builder.finish({builder.relu(builder.argument())}), of);
  }
  void pass_a_lease() {
    for (int64_t i = 0; i <= LeaseTable::kTicks; ++i) worker.look_at_leases();
  }
};

TEST(LocalWorkerLeases, DropAllThatAnOwnerHasLeftWhenItIsNotHeardOf) {
  Fixture f;
  LogCapture log;
  f.worker.renew({f.owner, {"theirs"}}, [](const Status&, const LeaseTerms&) {});
  f.program(f.owner);
  f.program({});
  f.worker.add_source(1, std::make_shared<NoElements>(), f.owner);
  f.worker.add_source(2, std::make_shared<NoElements>());
  f.worker.store().declare("theirs//v", {DType::kFloat, {2}}, at::kCPU);
  f.worker.store().declare("v", {DType::kFloat, {2}}, at::kCPU);

  f.pass_a_lease();

  EXPECT_TRUE(eventually([&] { return f.worker.status().variables == 1; }));
  EXPECT_EQ(f.worker.status().programs, 1u);
  EXPECT_EQ(f.worker.status().sources, 1u);
  EXPECT_TRUE(eventually([&] {
    return log.contains(
        "a chief was not heard of for 3600000 ms; dropped 1 programs, 1 variables, 1 sequences of examples that it had "
        "left");
  }));
}

TEST(LocalWorkerLeases, GiveTheMemoryOfStepsBackWithTheirOwner) {
  Fixture f;
  Builder builder;
  const ValueId large = builder.argument({DType::kFloat, {1000, 1000}});
  const ProgramHandle handle = f.worker.register_program(builder.finish({builder.relu(large)}), f.owner);
  f.worker.run(handle, {torch::ones({1000, 1000})});
  ASSERT_GT(MemoryPool::instance().usage().kept, 0u);

  f.pass_a_lease();

  EXPECT_TRUE(eventually([] { return MemoryPool::instance().usage().kept == 0; }));
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr int64_t kHoles = 64 << 20;

// Without what earlier tests have left, which holes would lie in.
int64_t resident_without_holes() {
  malloc_trim(0);
  return resident_memory();
}

// Much memory that is free and a little that is not, after it.
std::vector<char> make_holes() {
  constexpr size_t kEach = 16 << 10;
  std::vector<std::vector<char>> small(kHoles / kEach, std::vector<char>(kEach, 1));
  return std::move(small.back());
}

TEST(LocalWorkerLeases, GiveTheHolesBackThatTheirOwnersLeaveInMemory) {
  Fixture f;
  const int64_t before = resident_without_holes();
  const std::vector<char> last = make_holes();
  ASSERT_GE(resident_memory(), before + kHoles / 2);

  f.worker.release({f.owner, {}});
  f.worker.look_at_leases();

  EXPECT_TRUE(eventually([&] { return resident_memory() < before + kHoles / 4; }));
}

// Threads that served an owner end later, and answers are kept for it for a while.
TEST(LocalWorkerLeases, GiveTheHolesBackThatAppearAfterTheirOwnersHaveLeft) {
  Fixture f;
  const int64_t before = resident_without_holes();
  f.worker.release({f.owner, {}});
  f.worker.look_at_leases();
  const std::vector<char> last = make_holes();
  ASSERT_GE(resident_memory(), before + kHoles / 2);

  f.worker.look_at_leases();

  EXPECT_TRUE(eventually([&] { return resident_memory() < before + kHoles / 4; }));
}
#endif

TEST(LocalWorkerLeases, AreRenewedByRuns) {
  Fixture f;
  const ProgramHandle handle = f.program(f.owner);

  for (int i = 0; i < 20; ++i) {
    f.worker.look_at_leases();
    f.worker.run(handle, {torch::ones({2, 2})});
  }

  EXPECT_EQ(f.worker.status().programs, 1u);
}

TEST(LocalWorkerLeases, KeepOwnersOfOneNameApart) {
  Fixture f;
  const Owner other{random_id(), f.owner.name};
  const ProgramHandle mine = f.program(f.owner), theirs = f.program(other);

  f.worker.release({f.owner, {}});

  EXPECT_THROW(f.worker.run(mine, {torch::ones({2, 2})}), Error);
  EXPECT_EQ(f.worker.run(theirs, {torch::ones({2, 2})}).size(), 1u);
}

TEST(LocalWorkerLeases, HoldTheValuesThatNobodyHasFetched) {
  Rendezvous rendezvous;
  rendezvous.send(1, 1, torch::ones({2}), 7);
  rendezvous.send(1, 2, torch::ones({2}), 8);
  rendezvous.receive(2, 1, [](const Status&, const at::Tensor&) {});

  EXPECT_EQ(rendezvous.drop(7), 1u);
  EXPECT_EQ(rendezvous.waiting_values(), 1u);
}

}  // namespace
}  // namespace muster
