#include "muster/distribute/replica_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/graph/dump.h"
#include "muster/trace/control_flow.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The devices of this process are four, as local_strategies_test.cc has them.
class ReplicaOps : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<std::string> devices(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(str_cat("/device:CPU:", i));
    return names;
  }
  // [1, 2] times the number of each replica.
  static at::Tensor own() { return torch::tensor({1.0F, 2.0F}) * (replica_id() + 1); }

  const int replicas_ = GetParam();
  const float sum_ = static_cast<float>(replicas_ * (replicas_ + 1)) / 2;  // 1 + 2 + …
  const MirroredStrategy strategy_{devices(replicas_)};
};

INSTANTIATE_TEST_SUITE_P(Count, ReplicaOps, ::testing::Values(1, 2, 4));

TEST_P(ReplicaOps, SumsAndMeansReachEveryReplica) {
  auto step = function([] {
    const auto both = all_reduce(ReduceOp::kMean, {own(), own().sum()});
    return std::vector{all_reduce(ReduceOp::kSum, own()), both[0], both[1]};
  });

  for (const std::vector<at::Tensor>& result : strategy_.run(step).values) {
    EXPECT_TRUE(result[0].equal(torch::tensor({1.0F, 2.0F}) * sum_));
    EXPECT_TRUE(result[1].equal(torch::tensor({1.0F, 2.0F}) * sum_ / replicas_));
    EXPECT_TRUE(result[2].equal(torch::full({}, 3 * sum_ / static_cast<float>(replicas_))));
  }
}

TEST_P(ReplicaOps, TheLeastAndTheMostReachEveryReplica) {
  auto step = function([](at::Tensor x) {
    const at::Tensor first = torch::tensor({replica_id() == 0});
    return std::vector{all_reduce(ReduceOp::kMin, own()), all_reduce(ReduceOp::kMax, own()),
                       all_reduce(ReduceOp::kMin, first), all_reduce(ReduceOp::kMax, first),
                       reduce_scatter(ReduceOp::kMax, x * replica_id())};
  });
  const float most = static_cast<float>(replicas_);

  for (const std::vector<at::Tensor>& result : strategy_.run(step, torch::ones({replicas_})).values) {
    EXPECT_TRUE(result[0].equal(torch::tensor({1.0F, 2.0F})));
    EXPECT_TRUE(result[1].equal(torch::tensor({1.0F, 2.0F}) * most));
    EXPECT_EQ(result[2].item<bool>(), replicas_ == 1) << "whether all are";
    EXPECT_TRUE(result[3].item<bool>()) << "whether any is";
    EXPECT_EQ(result[4].item<float>(), most - 1);
  }
}

TEST_P(ReplicaOps, HaveNoGradientByTheLeastOrTheMost) {
  auto step = function([](at::Tensor given) {
    at::Tensor x = (given + 0).detach().requires_grad_();
    all_reduce(ReduceOp::kMax, x).sum().backward();
    return x.grad();
  });

  EXPECT_THAT(caught([&] { strategy_.run(step, torch::ones({2})); }).message(),
              HasSubstr("all_reduce(max) has no gradient"));
}

TEST_P(ReplicaOps, ReduceForOneReplica) {
  const int last = replicas_ - 1;
  auto step = function([=](at::Tensor given) {
    at::Tensor x = (given * (replica_id() + 1)).detach().requires_grad_();
    const at::Tensor sum = reduce_to(ReduceOp::kSum, x, last), mean = reduce_to(ReduceOp::kMean, x, last);
    (sum * 3 + mean).sum().backward();
    return std::vector{sum.detach(), mean.detach(), x.grad()};
  });
  const float replicas = static_cast<float>(replicas_);
  const at::Tensor given = torch::tensor({1.0F, 2.0F});

  const auto results = strategy_.run(step, given);

  for (int i = 0; i < replicas_; ++i) {
    const float own = i == last ? 1 : 0;
    EXPECT_TRUE(torch::allclose(results.values[i][0], given * sum_ * own));
    EXPECT_TRUE(torch::allclose(results.values[i][1], given * sum_ / replicas * own));
    EXPECT_TRUE(torch::allclose(results.values[i][2], torch::full({2}, 3 + 1 / replicas)));
  }
  auto of_nobody = function([&](at::Tensor x) { return reduce_to(ReduceOp::kSum, x, replicas_); });
  EXPECT_THAT(caught([&] { strategy_.run(of_nobody, given); }).message(),
              HasSubstr(str_cat("reduce_to replica ", replicas_, " of ", replicas_)));
}

// 40,000 is a half, and twice that is none.
TEST_P(ReplicaOps, TakeTheMeanOfHalvesWhoseSumIsNone) {
  const at::Tensor large = torch::full({replicas_, 2}, 40'000.0, torch::kHalf);
  auto step = function([](at::Tensor x) {
    return std::vector{all_reduce(ReduceOp::kMean, x), reduce_to(ReduceOp::kMean, x, 0),
                       reduce_scatter(ReduceOp::kMean, x)};
  });
  const PerReplica<at::Tensor> of_each{std::vector<at::Tensor>(static_cast<size_t>(replicas_), large)};

  const auto results = strategy_.run(step, large);
  const at::Tensor mean = strategy_.reduce(ReduceOp::kMean, of_each);
  const at::Tensor mean_of_rows = strategy_.reduce(ReduceOp::kMean, of_each, 0);

  for (const std::vector<at::Tensor>& result : results.values) {
    EXPECT_TRUE(result[0].equal(large));
    EXPECT_TRUE(result[2].equal(large.slice(0, 0, 1)));
  }
  EXPECT_TRUE(results.values[0][1].equal(large));
  EXPECT_TRUE(mean.equal(large)) << mean;
  EXPECT_TRUE(mean_of_rows.equal(large[0])) << mean_of_rows;
}

TEST_P(ReplicaOps, ReduceWholeNumbersToOneTypeEverywhere) {
  auto step = function(
      [](at::Tensor x) { return std::vector{reduce_to(ReduceOp::kSum, x, 0), reduce_to(ReduceOp::kMean, x, 0)}; });

  for (const std::vector<at::Tensor>& result : strategy_.run(step, torch::ones({2}, torch::kLong)).values) {
    EXPECT_EQ(result[0].scalar_type(), torch::kLong);
    EXPECT_EQ(result[1].scalar_type(), torch::kFloat);
  }
}

TEST_P(ReplicaOps, GatherAlongAnyAxisAndDifferentNumbersOfRows) {
  auto step = function([] {
    const at::Tensor rows = torch::full({replica_id() + 1, 2}, replica_id());
    return std::vector{all_gather(rows), all_gather(rows.t(), -1)};
  });
  std::vector<at::Tensor> expected;
  for (int i = 0; i < replicas_; ++i) expected.push_back(torch::full({i + 1, 2}, i));

  for (const std::vector<at::Tensor>& result : strategy_.run(step).values) {
    EXPECT_TRUE(result[0].equal(torch::cat(expected)));
    EXPECT_TRUE(result[1].equal(torch::cat(expected).t()));
  }
}

// Replica i gives (i + 1) times rows of numbers, in as many pairs as there are replicas.
TEST_P(ReplicaOps, DivideRowsAmongTheReplicas) {
  const at::Tensor rows = torch::arange(4.0F * static_cast<float>(replicas_)).view({-1, 2});
  auto step = function([](at::Tensor x) {
    const at::Tensor given = x * (replica_id() + 1);
    return std::vector{reduce_scatter(ReduceOp::kSum, given), reduce_scatter(ReduceOp::kMean, given), all_to_all(given),
                       broadcast(given, 0)};
  });

  const auto results = strategy_.run(step, rows);

  for (int i = 0; i < replicas_; ++i) {
    const at::Tensor share = rows.narrow(0, 2 * i, 2);
    std::vector<at::Tensor> of_all;
    for (int j = 0; j < replicas_; ++j) of_all.push_back(share * (j + 1));
    EXPECT_TRUE(results.values[i][0].equal(share * sum_));
    EXPECT_TRUE(torch::allclose(results.values[i][1], share * sum_ / replicas_));
    EXPECT_TRUE(results.values[i][2].equal(torch::cat(of_all)));
    EXPECT_TRUE(results.values[i][3].equal(rows));
  }
}

TEST_P(ReplicaOps, PassGradientsThroughWhatDividesRows) {
  auto step = function([](at::Tensor given) {
    at::Tensor x = (given + 0).detach().requires_grad_(), y = (given + 0).detach().requires_grad_(),
               z = (given + 0).detach().requires_grad_();
    const float own = static_cast<float>(replica_id()) + 1;
    at::Tensor loss =
        (reduce_scatter(ReduceOp::kSum, x) * own).sum() + (all_to_all(y) * own).sum() + (broadcast(z, 0) * own).sum();
    loss.backward();
    return std::vector{x.grad(), y.grad(), z.grad()};
  });
  std::vector<at::Tensor> shares;
  for (int i = 0; i < replicas_; ++i) shares.push_back(torch::full({2, 3}, i + 1.0F));

  const auto gradients = strategy_.run(step, torch::ones({2 * replicas_, 3}));

  for (int i = 0; i < replicas_; ++i) {
    EXPECT_TRUE(gradients.values[i][0].equal(torch::cat(shares)));
    EXPECT_TRUE(gradients.values[i][1].equal(torch::cat(shares)));
    EXPECT_TRUE(gradients.values[i][2].equal(torch::full({2 * replicas_, 3}, i == 0 ? sum_ : 0.0F)));
  }
}

TEST_P(ReplicaOps, GiveEachReplicaAResultOfItsOwn) {
  auto step = function([] {
    at::Tensor sum = all_reduce(ReduceOp::kSum, torch::ones({2}));
    return sum.mul_(replica_id() + 1);
  });

  const auto results = strategy_.run(step);

  for (int i = 0; i < replicas_; ++i) {
    EXPECT_TRUE(results.values[i].equal(torch::full({2}, static_cast<float>(replicas_ * (i + 1)))));
  }
}

// loss_i = (i + 1) * f(all): by x_j the sum of all losses counts.
TEST_P(ReplicaOps, PassGradientsToTheReplicasThatGaveTheValues) {
  auto step = function([](at::Tensor given) {
    at::Tensor x = (given * (replica_id() + 1)).detach().requires_grad_();
    at::Tensor loss = all_reduce(ReduceOp::kSum, x).square().sum() * (replica_id() + 1);
    loss = loss + all_reduce(ReduceOp::kMean, x).sum() + (all_gather(x) * (replica_id() + 1)).select(0, 0);
    loss.backward();
    return x.grad();
  });
  const at::Tensor given = torch::tensor({1.0F, 2.0F});

  const auto gradients = strategy_.run(step, given);

  for (int i = 0; i < replicas_; ++i) {
    at::Tensor expected = 2 * given * sum_ * sum_ + 1;
    if (i == 0) expected[0] += sum_;  // the first element of what was gathered is its
    EXPECT_TRUE(torch::allclose(gradients.values[i], expected)) << i << ": " << gradients.values[i] << expected;
  }
}

TEST_P(ReplicaOps, LeaveEachReplicaOnItsDevice) {
  auto step = function([](at::Tensor x) {
    at::Tensor own = (x + 1).requires_grad_();
    at::Tensor loss = (all_reduce(ReduceOp::kSum, own) + own.sigmoid()).tanh().sum();
    loss.backward();
    return own.grad();
  });
  strategy_.run(step, torch::ones({2}));
  const auto in_one = function([&](at::Tensor x) { return strategy_.run(step, x); });

  const Program program = in_one.program(torch::ones({2}));

  std::map<std::string, std::map<std::string, int>> by_device;
  for (const Instruction& instruction : program.instructions) {
    const std::string& device = program.devices[instruction.device];
    const size_t begin = device.find("/device:");
    if (begin != std::string::npos) ++by_device[device.substr(begin)][program.op_of(instruction).name];
  }
  for (const std::string& device : devices(replicas_)) {
    for (const std::string op : {"aten::sigmoid", "aten::tanh", "aten::sigmoid_backward", "aten::tanh_backward"}) {
      EXPECT_EQ(by_device[device][op], 1) << op << " on " << device << "\n" << dump(program);
    }
  }
}

TEST_P(ReplicaOps, MergeOnceForAllAndLetEachReadWhatWasWritten) {
  auto v = strategy_.make<Variable>(torch::zeros({2}), VariableOptions{.name = "merged"});
  int calls = 0;
  auto step = function([&] {
    const at::Tensor largest = merge_call(
        [&](const PerReplica<at::Tensor>& each, const PerReplica<at::Tensor>& ones) {
          ++calls;
          EXPECT_EQ(each.values.size(), static_cast<size_t>(replicas_));
          EXPECT_EQ(ReplicaContext::current(), nullptr);
          v.assign_add(strategy_.reduce(ReduceOp::kSum, each));
          return torch::stack(each.values).amax(0) + ones.values[0];
        },
        own(), torch::ones({2}));
    merge_call([&](const PerReplica<at::Tensor>& each) { v.assign_add(each.values[0]); }, torch::ones({2}));
    return largest + v.value();
  });

  const auto results = strategy_.run(step);

  EXPECT_EQ(calls, 1);
  const at::Tensor written = torch::tensor({1.0F, 2.0F}) * sum_ + 1;
  EXPECT_TRUE(v.value().equal(written));
  for (const at::Tensor& result : results.values) {
    EXPECT_TRUE(result.equal(torch::tensor({1.0F, 2.0F}) * replicas_ + 1 + written));
  }
}

TEST_P(ReplicaOps, MergeWritesOneAfterTheOther) {
  using Write = void (*)(Variable&, const at::Tensor&);
  const std::vector<std::pair<Write, float>> writes{{[](Variable& v, const at::Tensor& x) { v.assign(x); }, 1.0F},
                                                    {[](Variable& v, const at::Tensor& x) { v.assign_add(x); }, 8.0F},
                                                    {[](Variable& v, const at::Tensor& x) { v.assign_sub(x); }, 2.0F}};
  for (const auto& [write, expected] : writes) {
    auto v = strategy_.make<Variable>(torch::full({}, 5.0F));
    auto step = function([&, write = write](at::Tensor x) {
      merge_call([&](const PerReplica<at::Tensor>& each) { write(v, each.values[0]); }, x);
    });

    strategy_.run(step, torch::full({}, 2.0F));
    strategy_.run(step, torch::ones({}));

    EXPECT_EQ(v.value().item<float>(), expected);
    for (const Variable& copy : v.copies()) EXPECT_EQ(copy.value().item<float>(), expected);
  }
}

TEST_P(ReplicaOps, MergeWritesOfModulesIntoAllCopies) {
  auto net = strategy_.make<torch::nn::Linear>(1, 1);
  const Variable weight = adopted(net).at("weight");
  const float before = weight.value().item<float>();
  auto step = function([&] {
    merge_call([&](const PerReplica<at::Tensor>& each) { Variable(weight).assign_add(each.values[0]); },
               torch::ones({1, 1}));
    return net->forward(torch::ones({1, 1}));
  });

  const auto results = strategy_.run(step);

  for (const at::Tensor& result : results.values) EXPECT_TRUE(result.equal(results.values[0]));
  EXPECT_FLOAT_EQ(weight.value().item<float>(), before + 1);
  for (const Variable& copy : weight.copies()) EXPECT_FLOAT_EQ(copy.value().item<float>(), before + 1);
}

// The sum of all losses is (1 + … + n) times the sum of all values, squared.
TEST_P(ReplicaOps, HaveSecondDerivatives) {
  auto step = function([](at::Tensor given) {
    at::Tensor x = (given * (replica_id() + 1)).detach().requires_grad_();
    const at::Tensor loss = all_reduce(ReduceOp::kSum, x).square().sum() * (replica_id() + 1);
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return std::vector{first.detach(), torch::autograd::grad({first.sum()}, {x})[0]};
  });

  const auto results = strategy_.run(step, torch::ones({2}));

  for (const std::vector<at::Tensor>& result : results.values) {
    EXPECT_TRUE(result[0].equal(torch::full({2}, 2 * sum_ * sum_)));
    EXPECT_TRUE(result[1].equal(torch::full({2}, 2 * sum_ * static_cast<float>(replicas_))));
  }
}

TEST(ReplicaOps, OutsideOfReplicasAreThoseOfOne) {
  at::Tensor x = torch::tensor({1.0F, 2.0F}).requires_grad_();

  at::Tensor loss = (all_reduce(ReduceOp::kMean, x) * all_gather(x)).sum();
  loss.backward();

  EXPECT_EQ(loss.item<float>(), 5);
  EXPECT_TRUE(x.grad().equal(torch::tensor({2.0F, 4.0F})));
  EXPECT_EQ(
      merge_call([](const PerReplica<at::Tensor>& each) { return each.value() + 1; }, torch::ones({})).item<float>(),
      2);
}

class Two : public ::testing::Test {
 protected:
  const MirroredStrategy strategy_{std::vector<std::string>{"/device:CPU:1", "/device:CPU:2"}};
};

TEST_F(Two, ReplicasThatDoNotDoTheSameAreNamed) {
  auto refusal = [&](const auto& lambda) {
    auto step = function(lambda);
    const Status status = caught([&] { strategy_.run(step); });
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    return status.message();
  };
  const at::Tensor one = torch::ones({});
  auto sum = [&] { return all_reduce(ReduceOp::kSum, one); };

  EXPECT_THAT(refusal([&] { return replica_id() == 0 ? sum() : one + 0; }),
              HasSubstr("replica 1 ends, but replica 0 came to all_reduce"));
  EXPECT_THAT(refusal([&] { return replica_id() == 1 ? sum() : one + 0; }),
              HasSubstr("replica 1 comes to all_reduce(sum), replica 0 to its end"));
  EXPECT_THAT(refusal([&] { return replica_id() == 1 ? sum() : all_gather(one.view({1})); }),
              HasSubstr("replica 1 comes to all_reduce(sum), replica 0 to all_gather"));
  EXPECT_THAT(refusal([&] {
                sum();
                return replica_id() == 1 ? sum() : one + 0;
              }),
              HasSubstr("replica 1 comes to all_reduce(sum), replica 0 to its end"));
  EXPECT_THAT(refusal([&] {
                at::Tensor x = one + 0;
                repeat(3, [&] { x += sum(); });
                return x;
              }),
              AllOf(HasSubstr("all_reduce(sum) inside of control flow"), HasSubstr("around strategy.run()")));
}

// The other replicas would not take part.
TEST_F(Two, GradientsOfWhatReplicasDidTogetherAreTakenInside) {
  auto one = function([](at::Tensor x) { return all_reduce(ReduceOp::kSum, x).sum() * (replica_id() + 1); });
  auto outside = function([&](at::Tensor given) {
    at::Tensor x = (given + 0).detach().requires_grad_();
    const at::Tensor loss = strategy_.reduce(ReduceOp::kSum, strategy_.run(one, x));
    return torch::autograd::grad({loss}, {x})[0];
  });
  auto inside = function([&](at::Tensor given) {
    at::Tensor x = (given + 0).detach().requires_grad_();
    const at::Tensor before = all_gather(x);
    auto step = function([&] { return torch::autograd::grad({before.sum()}, {x})[0]; });
    return strategy_.run(step).values[0];
  });

  for (const Status& status : {caught([&] { outside(torch::ones({2})); }), caught([&] { inside(torch::ones({2})); })}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("call backward() where"));
  }
}

TEST_F(Two, ReplicasThatWantDifferentThingsAreNamed) {
  auto refusal = [&](const auto& lambda) {
    auto step = function(lambda);
    return caught([&] { strategy_.run(step); }).message();
  };

  EXPECT_THAT(refusal([] { return broadcast(torch::ones({}), replica_id()); }), HasSubstr("broadcast from replica 1"));
  EXPECT_THAT(refusal([] { return all_gather(torch::ones({2, 2}), replica_id()); }), HasSubstr("along axis 1"));
  EXPECT_THAT(refusal([] { return all_reduce(replica_id() == 0 ? ReduceOp::kSum : ReduceOp::kMean, torch::ones({})); }),
              HasSubstr("all_reduce(mean)"));
}

TEST_F(Two, ReplicasWhoseValuesDoNotFitAreNamed) {
  auto refusal = [&](const auto& lambda) {
    auto step = function(lambda);
    const Status status = caught([&] { strategy_.run(step); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return status.message();
  };

  EXPECT_THAT(refusal([] { return all_reduce(ReduceOp::kSum, torch::ones({replica_id() + 1})); }),
              AllOf(HasSubstr("all_reduce"), HasSubstr("[1]"), HasSubstr("[2]")));
  EXPECT_THAT(
      refusal([] { return all_reduce(ReduceOp::kSum, std::vector<at::Tensor>(replica_id() + 1, torch::ones({}))); }),
      HasSubstr("1 tensors in the first replica of this process and 2"));
  EXPECT_THAT(refusal([] { return all_reduce(ReduceOp::kSum, torch::tensor({true})); }), HasSubstr("bool"));
  EXPECT_THAT(refusal([] { return all_gather(torch::ones({})); }), HasSubstr("unsqueeze"));
  EXPECT_THAT(refusal([] { return all_gather(torch::ones({2}), 1); }), HasSubstr("axis 1"));
  EXPECT_THAT(refusal([] { return all_to_all(torch::ones({3})); }), HasSubstr("no rows for 2 replicas alike"));
  EXPECT_THAT(refusal([] { return reduce_scatter(ReduceOp::kSum, torch::ones({})); }), HasSubstr("reduce_scatter"));
  EXPECT_THAT(refusal([] { return broadcast(torch::ones({}), 2); }), HasSubstr("replica 2 of 2"));
}

TEST_F(Two, ReplicasEndTogetherWhenOneOfThemFails) {
  int destroyed = 0;
  struct Counts {
    int& count;
    ~Counts() { ++count; }
  };
  for (int i = 0; i < 50; ++i) {
    auto step = function([&, i] {
      const Counts local{destroyed};
      all_reduce(ReduceOp::kSum, torch::ones({}));
      if (replica_id() == i % 2) throw std::runtime_error("no such thing");
      return all_reduce(ReduceOp::kSum, torch::ones({}));
    });
    EXPECT_THROW(strategy_.run(step), std::runtime_error);
  }
  EXPECT_EQ(destroyed, 100);
  EXPECT_EQ(ReplicaContext::current(), nullptr);
  EXPECT_FALSE(tracing());
}

}  // namespace
}  // namespace muster
