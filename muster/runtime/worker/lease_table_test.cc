#include "muster/runtime/worker/lease_table.h"

#include <gtest/gtest.h>

#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

Owner somebody() { return {random_id(), "somebody"}; }

// The owners whose leases end within so many ticks.
std::vector<std::string> ended_within(LeaseTable& leases, int64_t ticks) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < ticks; ++i) {
    for (const Lease& lease : leases.tick()) names.push_back(lease.owner.name);
  }
  return names;
}

TEST(LeaseTable, EndsALeaseThatNobodyRenews) {
  LeaseTable leases;
  leases.renew({somebody(), {"container"}});

  EXPECT_TRUE(ended_within(leases, LeaseTable::kTicks).empty());
  const std::vector<Lease> ended = leases.tick();

  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].owner.name, "somebody");
  EXPECT_EQ(ended[0].containers, std::vector<std::string>{"container"});
  EXPECT_EQ(leases.size(), 0u);
}

TEST(LeaseTable, KeepsALeaseThatIsRenewed) {
  LeaseTable leases;
  const Owner owner = somebody();

  for (int i = 0; i < 10; ++i) {
    leases.renew({owner, {}});
    EXPECT_TRUE(ended_within(leases, LeaseTable::kTicks).empty());
  }

  EXPECT_EQ(leases.size(), 1u);
}

TEST(LeaseTable, IsRenewedByWhateverItsOwnerDoes) {
  LeaseTable leases;
  const auto lease = leases.of(somebody());

  for (int i = 0; i < 10; ++i) {
    lease->heard();
    EXPECT_TRUE(ended_within(leases, LeaseTable::kTicks).empty());
  }

  EXPECT_EQ(ended_within(leases, 1), std::vector<std::string>{"somebody"});
}

TEST(LeaseTable, TellsAnOwnerThatComesBackThatItsLeaseHadEnded) {
  LeaseTable leases;
  const Owner owner = somebody();
  EXPECT_FALSE(leases.renew({owner, {}}));
  ended_within(leases, LeaseTable::kTicks + 1);

  EXPECT_TRUE(leases.renew({owner, {}}));
  EXPECT_FALSE(leases.renew({owner, {}}));
}

TEST(LeaseTable, KnowsOwnersOfOneNameApart) {
  LeaseTable leases;
  const Owner first{1, "chief"}, second{2, "chief"};
  leases.renew({first, {"a"}});
  leases.renew({second, {"b"}});

  EXPECT_EQ(leases.end(first).containers, std::vector<std::string>{"a"});
  EXPECT_EQ(leases.size(), 1u);
}

TEST(LeaseTable, HasNoLeaseForNobody) {
  LeaseTable leases;

  EXPECT_EQ(leases.of({}), nullptr);
  EXPECT_THROW(leases.renew({}), Error);
}

}  // namespace
}  // namespace muster
