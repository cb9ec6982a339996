#include "muster/rpc/packed_tensor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/worker_service.h"
#include "muster/runtime/memory/tensors.h"

namespace muster::packed_tensor_test {
namespace {

constexpr WireForm kBrain{.type = WireType::kBFloat16}, kHalf{.type = WireType::kFloat16}, kDeflate{.deflate = true},
    kBoth{.type = WireType::kBFloat16, .deflate = true};

Frame frame_of(std::vector<at::Tensor> tensors, std::vector<WireForm> forms) {
  return {.tensors = std::move(tensors), .forms = std::move(forms)};
}

at::Tensor there_and_back(const at::Tensor& tensor, const WireForm& form) {
  return decode(encode(frame_of({tensor}, {form}))).tensors.at(0);
}

TEST(PackedTensor, IsWhatItWasRoundedOnce) {
  const at::Tensor values = torch::randn({100, 300});

  const at::Tensor brain = there_and_back(values, kBrain), half = there_and_back(values, kHalf);

  EXPECT_TRUE(torch::equal(brain, values.to(torch::kBFloat16).to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(half, values.to(torch::kHalf).to(torch::kFloat)));
  EXPECT_FALSE(torch::equal(brain, values));
  EXPECT_TRUE(torch::equal(there_and_back(brain, kBrain), brain)) << "what is rounded already is not changed";
}

TEST(PackedTensor, TakesHalfOfTheBytes) {
  const size_t plain = encode(frame_of({torch::randn({10'000})}, {})).Length();

  EXPECT_LT(encode(frame_of({torch::randn({10'000})}, {kBrain})).Length(), plain * 0.51);
}

TEST(PackedTensor, IsDeflatedWithoutLoss) {
  const at::Tensor ids = torch::randint(100'000, {60'000}, torch::kLong);
  const at::Tensor sparse = torch::randn({300, 400}).relu();

  EXPECT_TRUE(torch::equal(there_and_back(ids, kDeflate), ids));
  EXPECT_TRUE(torch::equal(there_and_back(sparse, kDeflate), sparse));
  EXPECT_TRUE(torch::equal(there_and_back(sparse, kBoth), sparse.to(torch::kBFloat16).to(torch::kFloat)));
  EXPECT_LT(encode(frame_of({ids}, {kDeflate})).Length(), ids.nbytes() * 0.4);
  EXPECT_LT(encode(frame_of({sparse}, {kBoth})).Length(), encode(frame_of({sparse}, {kBrain})).Length());
}

TEST(PackedTensor, IsSentAsItIsWhereThatIsNoLonger) {
  const at::Tensor noise = torch::randint(256, {200'000}, torch::kLong).to(torch::kByte);
  const at::Tensor small = torch::randn({255}), rate = torch::tensor(0.1);

  EXPECT_TRUE(pack_tensor(noise, kDeflate).form.plain());
  EXPECT_TRUE(pack_tensor(torch::ones({1000}, torch::kLong), kBrain).form.plain()) << "only float32 is rounded";
  EXPECT_TRUE(torch::equal(there_and_back(small, kBoth), small));
  EXPECT_TRUE(torch::equal(there_and_back(rate, kBoth), rate));
}

TEST(PackedTensor, ThatIsDamagedIsRefused) {
  const TensorSpec spec{DType::kLong, {1000}};
  const PackedTensor packed = pack_tensor(torch::arange(1000), kDeflate);
  ASSERT_TRUE(packed.form.deflate);
  for (int64_t i = 0; i < packed.tensor.numel(); ++i) {
    at::Tensor damaged = packed.tensor.clone();
    damaged[i] = damaged[i].bitwise_xor(0x41);
    EXPECT_EQ(testing_support::caught([&] { unpack_tensor({damaged, kDeflate}, spec); }).code(), StatusCode::kDataLoss)
        << i;
  }
  const at::Tensor part = packed.tensor.narrow(0, 0, packed.tensor.numel() - 1);
  EXPECT_EQ(testing_support::caught([&] { unpack_tensor({part, kDeflate}, spec); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(testing_support::caught([&] { unpack_tensor(packed, {DType::kLong, {999}}); }).code(),
            StatusCode::kDataLoss);
}

TEST(PackedTensor, OfAStrangerAsksForNoMemoryThatItCannotFill) {
  auto refused = [](const TensorSpec& spec, const WireForm& form, int64_t bytes) {
    return testing_support::caught([&] { packed_spec(spec, form, bytes); }).code();
  };

  EXPECT_EQ(refused({DType::kFloat, {int64_t{1} << 40}}, kDeflate, 1000), StatusCode::kDataLoss);
  EXPECT_EQ(refused({DType::kFloat, {10}}, kDeflate, -1), StatusCode::kDataLoss);
  EXPECT_EQ(refused({DType::kLong, {10}}, kBrain, 0), StatusCode::kInvalidArgument);
}

// A part that a parameter server has: pulls a variable, and adds to it.
Program pull_and_push(const WireForm& form) {
  Program program{.name = "part", .num_values = 4};
  const TensorSpec spec{DType::kFloat, {64, 64}};
  program.arguments.push_back({.value = 0, .spec = spec});
  program.variables.push_back({.value = 1, .name = "w", .spec = spec, .wire = form});
  const int32_t add = program.intern_op(
      "aten::add_.Tensor", "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)");
  const int32_t copy = program.intern_op(kCopy.name, kCopy.schema);
  program.instructions.push_back(
      {.op = add, .arguments = {{ValueRef{1}}, {ValueRef{0}}, {int64_t{1}}}, .results = {{2}}});
  program.instructions.push_back({.op = copy, .arguments = {{ValueRef{1}}}, .results = {{3}}});
  program.outputs = {3};
  return program;
}

struct Server {
  LocalWorker worker{{.devices = {.gpus = false}}};  // as a parameter server has them
  RpcServer server{{.address = "127.0.0.1:0", .task = worker.devices().task(), .incarnation = worker.incarnation()},
                   worker_methods(worker, {})};
  const at::Tensor start = torch::randn({64, 64}), delta = torch::randn({64, 64});

  // What is pulled after the push.
  at::Tensor run(const WireForm& form, const ChannelOptions& options) {
    RemoteWorker remote(std::make_shared<RpcChannel>(server.address(), "", options));
    const Program program = pull_and_push(form);
    worker.store().declare("w", program.variables[0].spec, at::Device(at::kCPU))->assign(start);
    return remote.run(remote.register_program(program), {delta}).at(0);
  }
  at::Tensor kept() { return worker.store().find("w")->read(); }
};

at::Tensor rounded(const at::Tensor& tensor) { return tensor.to(torch::kBFloat16).to(torch::kFloat); }

TEST(PackedTensor, IsWhatAParameterServerOfAnotherMachineGetsAndGives) {
  Server ps;

  const at::Tensor pulled = ps.run(kBrain, {.near_memory = false});

  EXPECT_TRUE(torch::equal(ps.kept(), ps.start + rounded(ps.delta))) << "what was pushed was rounded, no more";
  EXPECT_TRUE(torch::equal(pulled, rounded(ps.kept())));
}

TEST(PackedTensor, IsNotMadeForAParameterServerOfTheSameMachineUnlessAskedFor) {
  Server ps;
  WireForm everywhere = kBrain;
  everywhere.same_machine = true;

  EXPECT_TRUE(torch::equal(ps.run(kBrain, {}), ps.start + ps.delta));
  EXPECT_TRUE(torch::equal(ps.kept(), ps.start + ps.delta));
  EXPECT_TRUE(torch::equal(ps.run(everywhere, {}), rounded(ps.start + rounded(ps.delta))));
}

}  // namespace
}  // namespace muster::packed_tensor_test
