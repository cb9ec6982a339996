#include "muster/trace/tracer/shared_memory.h"

#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Calls `work` itself and as a traced function, after a call with arguments that share nothing, on what `make` makes of
// equal memory: results and memory must be the same.
template <class Work>
void expect_as_eager(const Work& work, const at::Tensor& memory,
                     const std::function<std::pair<at::Tensor, at::Tensor>(at::Tensor)>& make) {
  const at::Tensor eager_memory = memory.clone(), traced_memory = memory.clone();
  auto traced = function(work);
  auto [x, y] = make(memory.clone());
  traced(x.clone(), y.clone());

  auto [eager_x, eager_y] = make(eager_memory);
  auto [traced_x, traced_y] = make(traced_memory);
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(same_bits(work(eager_x, eager_y), traced(traced_x, traced_y)));
    EXPECT_TRUE(same_bits(eager_memory, traced_memory));
  }
}

at::Tensor read_write_read(at::Tensor x, at::Tensor y) {
  const at::Tensor before = x * 2;
  y.add_(1);
  return before + x * 2 * 10;
}

TEST(SharedMemory, OfOneTensorGivenTwiceIsKnown) {
  expect_as_eager(read_write_read, torch::ones({3}), [](at::Tensor m) { return std::pair(m, m); });
}

TEST(SharedMemory, OfPartsThatOverlapIsKnown) {
  auto sums = [](at::Tensor x, at::Tensor y) {
    const at::Tensor before = x.sum();
    y.mul_(3);
    return before + x.sum() * 100;
  };
  const at::Tensor memory = torch::arange(12).to(torch::kDouble);

  expect_as_eager(sums, memory, [](at::Tensor m) { return std::pair(m.slice(0, 2, 7), m.slice(0, 5, 11)); });
  expect_as_eager(sums, memory, [](at::Tensor m) { return std::pair(m.slice(0, 5, 11), m.slice(0, 2, 7)); });
  expect_as_eager(sums, memory, [](at::Tensor m) { return std::pair(m.view({3, 4}).t(), m.view({3, 4})[1]); });
  expect_as_eager(sums, memory,
                  [](at::Tensor m) { return std::pair(m.view({3, 4}).select(1, 0), m.view({3, 4}).select(1, 1)); });
}

TEST(SharedMemory, OfTensorsOfDifferentTypesIsKnown) {
  auto bits = [](at::Tensor x, at::Tensor y) {
    const at::Tensor before = x * 1;
    y.add_(1);
    return before + x * 4;
  };

  expect_as_eager(bits, torch::ones({4}), [](at::Tensor m) { return std::pair(m, m.view(torch::kInt)); });
  expect_as_eager(bits, torch::ones({4}),
                  [](at::Tensor m) { return std::pair(m.slice(0, 1, 3).view(torch::kShort), m); });
}

TEST(SharedMemory, OfTwoTensorsMadeOfOnePointerIsKnown) {
  expect_as_eager(read_write_read, torch::ones({3}), [](at::Tensor m) {
    return std::pair(m, torch::from_blob(m.data_ptr(), {3}, [m](void*) {}, torch::kFloat));
  });
}

TEST(SharedMemory, IsKnownInABody) {
  auto looped = [](at::Tensor x, at::Tensor y) {
    return repeat(
        3,
        [&](at::Tensor, at::Tensor sum) {
          const at::Tensor before = x * 2;
          y.add_(1);
          return sum + before + x * 2;
        },
        torch::zeros({3}));
  };
  expect_as_eager(looped, torch::ones({3}), [](at::Tensor m) { return std::pair(m, m); });
}

TEST(SharedMemory, OfATensorThatIsDifferentiatedByAndGivenTwiceIsOneTensor) {
  auto slope = [](at::Tensor x, at::Tensor y) { return torch::autograd::grad({(x * y).sum()}, {x})[0]; };
  const at::Tensor x = torch::full({2}, 3.0).requires_grad_();
  auto traced = function(slope);

  traced(x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_());

  EXPECT_TRUE(same_bits(slope(x, x), traced(x, x)));
}

TEST(SharedMemory, DoesNotMatterToAFunctionThatOnlyReads) {
  auto sum = function([](at::Tensor x, at::Tensor y) { return x + y; });
  const at::Tensor x = torch::ones({3});

  sum(x, torch::ones({3}));
  sum(x, x);

  EXPECT_EQ(sum.stats().misses, 1);
}

TEST(SharedMemory, IsTracedOnceForEachWayOfSharing) {
  auto write = function([](at::Tensor x, at::Tensor y) { return x.add_(1).sum() + y.sum(); });
  const at::Tensor x = torch::ones({6});

  for (int i = 0; i < 3; ++i) {
    write(x.slice(0, 0, 3), x.slice(0, 3, 6));
    write(x.slice(0, 0, 3), x.slice(0, 0, 3));
    write(x.slice(0, 1, 4), x.slice(0, 1, 4));
    write(x.slice(0, 0, 3), x.slice(0, 1, 4));
  }

  EXPECT_EQ(write.stats().misses, 3) << "none, all, all but one element";
  EXPECT_EQ(write.stats().hits, 9);
}

TEST(SharedMemory, ThatNoViewCanShowIsRefused) {
  auto write = function([](at::Tensor x, at::Tensor y) { return x.add_(1).sum() + y.sum(); });
  at::Tensor bytes = torch::zeros({16}, torch::kByte);

  EXPECT_THAT(error_of([&] { write(bytes.slice(0, 1, 16), bytes.slice(0, 8, 16).view(torch::kDouble)); }),
              AllOf(HasSubstr("uint8[15]"), HasSubstr("float64[1]"), HasSubstr("share memory")));
}

TEST(SharedMemory, WithAVariableIsRefusedWhereItWouldBeWrittenTo) {
  Variable v(torch::ones({4}), {.name = "kept"});
  auto write = function([](at::Tensor x) { return x.add_(1).sum(); }, {.name = "write"});
  auto read = function([&](at::Tensor x) {
    const at::Tensor before = x * 2;
    v.assign_add(torch::ones({4}));
    return before + x * 2;
  });

  EXPECT_THAT(error_of([&] { write(v.value()); }),
              AllOf(HasSubstr("\"write\""), HasSubstr("argument 0 (float32[4])"), HasSubstr("variable \"kept\"")));
  EXPECT_THAT(error_of([&] { write(v.value().slice(0, 1, 3)); }), HasSubstr("variable \"kept\""));
  EXPECT_TRUE(same_bits(torch::ones({4}), v.value()));
  EXPECT_TRUE(same_bits(torch::full({4}, 4.0f), read(v.value()))) << "what was read never changes";
  EXPECT_TRUE(same_bits(torch::full({4}, 2.0f), v.value()));
}

}  // namespace
}  // namespace muster
