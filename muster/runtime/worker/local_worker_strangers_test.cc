// Programs that no tracer has made. Each of these once ended the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "muster/base/status.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using testing_support::Builder;
using testing_support::integer;
using testing_support::integers;
using testing_support::number;
using testing_support::ref;
using testing_support::refs;

LocalWorkerOptions small_worker() { return {.devices = {.gpus = false}, .run_memory = 64 << 20}; }

Status status_after(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

Status registered(const Program& program) {
  LocalWorker worker(small_worker());
  return status_after([&] { worker.register_program(program); });
}

Status run(const Program& program, std::vector<at::Tensor> arguments = {}) {
  LocalWorker worker(small_worker());
  return status_after([&] { worker.run(worker.register_program(program), std::move(arguments)); });
}

// Appends an instruction of libtorch's op.
ValueId call(Builder& builder, const std::string& op, std::vector<Argument> arguments, size_t results = 1) {
  Program& program = builder.program;
  Instruction instruction{.op = program.intern_op(op, muster::schema_of(op).value()),
                          .arguments = std::move(arguments)};
  for (size_t i = 0; i < results; ++i) instruction.results.push_back({program.new_value()});
  program.instructions.push_back(std::move(instruction));
  return program.instructions.back().results[0][0];
}

TEST(Strangers, CannotGiveAnOpAnotherSchema) {
  Builder nothing;
  nothing.argument();
  nothing.program.ops = {{"aten::relu", "aten::relu() -> ()"}};
  nothing.program.instructions = {{.op = 0}};
  Builder no_result;
  no_result.argument();
  no_result.program.ops = {{"aten::mm", "aten::mm(Tensor self, Tensor mat2) -> ()"}};
  no_result.program.instructions = {{.op = 0, .arguments = {ref(0), ref(0)}}};

  for (const Program& program : {nothing.program, no_result.program}) {
    const Status status = registered(program);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("but this libtorch has"));
  }
}

TEST(Strangers, CannotHideASchemaWhereNoInstructionUsesIt) {
  const Op fake{"aten::_foreach_add_.List", "aten::_foreach_add_.List(Tensor(a!)[] self) -> ()"};
  Builder unused;
  ValueId x = unused.argument();
  unused.program.ops.push_back(fake);
  for (const char* name : {"a", "b"}) unused.add_(unused.variable(name), x);
  Builder outer, body("body");
  body.program.ops.push_back(fake);
  outer.body(body.finish({}));

  EXPECT_EQ(registered(unused.finish({})).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(registered(outer.finish({})).code(), StatusCode::kFailedPrecondition);
}

TEST(Strangers, CannotCallAnOpWithoutTheTensorItNeeds) {
  Builder literal;
  literal.program.outputs = {literal.op("aten::relu", {{Undefined{}}})};
  Builder list;
  list.program.outputs = {list.op("aten::cat", {{ArgumentList{{Undefined{}}}}, integer(0)})};

  EXPECT_THAT(registered(literal.program).message(), HasSubstr("argument 0 (self) is a tensor that is not defined"));
  EXPECT_THAT(registered(list.program).message(), HasSubstr("argument 0 (tensors) has a tensor that is not defined"));
}

// native_layer_norm_backward returns nothing for what its mask leaves out.
class StrangersWithoutTensors : public ::testing::Test {
 protected:
  Status run_with(const std::function<void(Builder&, ValueId)>& use) {
    Builder builder;
    const ValueId x = builder.argument({DType::kFloat, {2, 2}}), mean = builder.argument({DType::kFloat, {2, 1}});
    builder.argument({DType::kBool, {}});
    const ValueId none = call(builder, "aten::native_layer_norm_backward",
                              {ref(x),
                               ref(x),
                               integers({2}),
                               ref(mean),
                               ref(mean),
                               {None{}},
                               {None{}},
                               {ArgumentList{{false}, {false}, {false}}}},
                              3);
    use(builder, none);
    return run(builder.program, {torch::ones({2, 2}), torch::ones({2, 1}), torch::tensor(true)});
  }

  static int32_t same(Builder& builder, int arguments, int outputs) {
    Builder body("body");
    std::vector<ValueId> all;
    for (int i = 0; i < arguments; ++i) all.push_back(body.argument());
    all.resize(outputs);
    return builder.body(body.finish(all));
  }
};

TEST_F(StrangersWithoutTensors, FailInAnOp) {
  const Status status = run_with([](Builder& b, ValueId none) { b.program.outputs = {b.relu(none)}; });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("argument 0 is a tensor that is not defined"));
}

TEST_F(StrangersWithoutTensors, FailAsPredicateStateAndInputOfControlFlow) {
  std::vector<std::function<void(Builder&, ValueId)>> uses;
  uses.push_back([](Builder& b, ValueId none) {
    const int32_t body = same(b, 1, 1);
    b.instruction(kCond.name, {ref(none), refs({0})}, {1}, "", {body, body});
  });
  uses.push_back([](Builder& b, ValueId none) {
    const int32_t body = same(b, 1, 1);
    b.instruction(kCond.name, {ref(2), refs({none})}, {1}, "", {body, body});
  });
  uses.push_back([](Builder& b, ValueId none) {
    const int32_t body = same(b, 2, 1);
    b.instruction(kLoop.name, {integer(2), refs({none}), refs({})}, {1, 1, 1}, "", {body});
  });
  uses.push_back([](Builder& b, ValueId none) {
    const int32_t body = same(b, 3, 1);
    b.instruction(kLoopGradient.name, {ref(none), refs({0}), refs({0}), refs({})}, {1, 0}, "", {body});
  });
  uses.push_back([](Builder& b, ValueId none) { b.op(kCopy.name, {ref(none)}); });

  for (size_t i = 0; i < uses.size(); ++i) {
    auto keep = [&](Builder& b, ValueId none) {
      uses[i](b, none);
      for (const auto& values : b.program.instructions.back().results) {
        b.program.outputs.insert(b.program.outputs.end(), values.begin(), values.end());
      }
    };
    EXPECT_THAT(run_with(keep).message(), HasSubstr("that is not defined")) << i;
  }
}

TEST(Strangers, CannotMisleadABackwardPassAboutWhatItsForwardPassFound) {
  const Argument two = integers({2, 2}), none = integers({0, 0}), one = integers({1, 1});
  auto pool = [&](const std::function<void(Builder&, ValueId image, ValueId indices)>& between) {
    Builder b;
    const ValueId image = b.argument({DType::kFloat, {1, 1, 4, 4}}),
                  gradient = b.argument({DType::kFloat, {1, 1, 2, 2}});
    call(b, "aten::max_pool2d_with_indices", {ref(image), two, two, none, one, {false}}, 2);
    const ValueId indices = b.program.instructions.back().results[1][0];
    between(b, image, indices);
    b.program.outputs = {call(b, "aten::max_pool2d_with_indices_backward",
                              {ref(gradient), ref(image), two, two, none, one, {false}, ref(indices)})};
    return run(b.program, {torch::arange(16.0).view({1, 1, 4, 4}), torch::ones({1, 1, 2, 2})});
  };

  const Status honest = pool([](Builder&, ValueId, ValueId) {});
  const Status written = pool([](Builder& b, ValueId, ValueId indices) {
    call(b, "aten::fill_.Scalar", {ref(call(b, "aten::alias", {ref(indices)})), integer(1'000'000)});
  });
  const Status resized = pool([](Builder& b, ValueId image, ValueId) {
    call(b, "aten::resize_", {ref(image), integers({1, 1, 2, 2}), {None{}}});
  });

  EXPECT_TRUE(honest.ok()) << honest.to_string();
  EXPECT_THAT(written.message(), HasSubstr("indices has 1000000, expected at least 0 and below 16"));
  EXPECT_THAT(resized.message(), HasSubstr("indices has 15, expected at least 0 and below 4"));
}

TEST(Strangers, CannotResizeAVariable) {
  LocalWorker worker(small_worker());
  auto cell = worker.store().declare("w", {DType::kFloat, {2, 2}}, at::kCPU);
  cell->assign(torch::ones({2, 2}));
  for (int64_t size : {int64_t{8}, int64_t{1} << 40}) {
    Builder builder;
    call(builder, "aten::resize_", {ref(builder.variable("w")), integers({size}), {None{}}});
    const ProgramHandle handle = worker.register_program(builder.finish({}));

    const Status status = status_after([&] { worker.run(handle, {}); });

    EXPECT_FALSE(status.ok()) << size;
    EXPECT_TRUE(torch::equal(cell->read(), torch::ones({2, 2}))) << size;
  }
}

TEST(Strangers, GetNoMoreMemoryThanTheirRunMayHave) {
  Builder permutation;
  permutation.program.outputs = {
      call(permutation, "aten::randperm", {integer(int64_t{1} << 40), {None{}}, {None{}}, {HereDevice{}}, {None{}}})};
  Builder zeros;
  zeros.program.outputs = {
      zeros.op("aten::zeros", {integers({int64_t{1} << 20, 1 << 10}), {None{}}, {None{}}, {HereDevice{}}, {None{}}})};

  for (const Program& program : {permutation.program, zeros.program}) {
    const Status status = run(program);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(str_cat("op ", program.ops[0].name, " (instruction 0")));
    EXPECT_THAT(status.message(), HasSubstr("may have 67108864"));
  }
}

TEST(Strangers, GetAWorkerThatSaysWhatItsRunsMayHave) {
  const Status status = status_after([] { LocalWorker({.run_memory = 0}); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("run_memory is 0, expected 1 or more bytes"));
}

TEST(Strangers, DoNotFoldWhatIsTooLarge) {
  Builder builder;
  const ValueId many =
      call(builder, "aten::arange", {integer(int64_t{1} << 40), {None{}}, {None{}}, {HereDevice{}}, {None{}}});
  builder.program.outputs = {builder.relu(many)};

  EXPECT_TRUE(registered(builder.program).ok());
  EXPECT_EQ(run(builder.program).code(), StatusCode::kResourceExhausted);
}

TEST(Strangers, GiveTheirMemoryBackFromRunToRun) {
  LocalWorker worker(small_worker());
  Builder builder;
  ValueId x = builder.argument({DType::kFloat, {1 << 20}});
  ValueId value = x;
  for (int i = 0; i < 64; ++i) value = builder.add(value, x);
  const ProgramHandle handle = worker.register_program(builder.finish({value}));

  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(worker.run(handle, {torch::ones({1 << 20})}).at(0)[0].item<float>(), 65);
  }
}

TEST(Strangers, CannotReceiveWhereThereIsNoCluster) {
  Builder builder;
  Program& program = builder.program;
  program.instructions = {{.op = program.intern_op(kReceive.name, kReceive.schema),
                           .arguments = {integer(1), {std::string("/job:ps/replica:0/task:0")}, integer(0)},
                           .results = {{program.new_value()}}}};
  program.outputs = {0};

  EXPECT_EQ(run(program).code(), StatusCode::kFailedPrecondition);
}

// Another task that leaves out what it was asked for.
class ForgetfulWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  std::vector<at::Tensor> run(ProgramHandle, std::vector<at::Tensor>, const RunOptions&) override { return {}; }
  void start(ProgramHandle, std::vector<at::Tensor>, const RunOptions&, RunDone done) override { done({}, {}); }
};

class ForgetfulPeers : public Peers {
 public:
  std::shared_ptr<Worker> worker(const std::string&) override { return worker_; }

 private:
  const std::shared_ptr<Worker> worker_ = std::make_shared<ForgetfulWorker>(small_worker());
};

TEST(Strangers, CannotAnswerWithFewerTensorsThanTheirPartHas) {
  Builder builder, part("part");
  Program& program = builder.program;
  program.parts = {part.finish({part.relu(part.argument())})};
  program.parts[0].task = "/job:ps/replica:0/task:0";
  const ValueId x = builder.argument();
  const ValueId answer = program.new_value();
  program.instructions = {{.op = program.intern_op(kRemote.name, kRemote.schema),
                           .arguments = {integer(0), refs({x})},
                           .results = {{answer}}}};
  ForgetfulPeers peers;
  LocalWorker worker(small_worker(), &peers);
  const ProgramHandle handle = worker.register_program(builder.finish({builder.relu(answer)}));

  const Status status = status_after([&] { worker.run(handle, {torch::ones({2, 2})}); });

  EXPECT_EQ(status.code(), StatusCode::kInternal) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("answered with 0 tensors where its part has 1 outputs"));
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
}

TEST(Strangers, AreStoppedInALoopThatDoesNothing) {
  Builder builder;
  Builder body("body");
  body.argument({DType::kLong, {}});
  const int32_t index = builder.body(body.finish({}));
  const ValueId trips = builder.argument({DType::kLong, {}});
  builder.instruction(kLoopGradient.name, {ref(trips), refs({}), refs({}), refs({})}, {0, 0}, "", {index});
  LocalWorkerOptions options = small_worker();
  options.passes.dead = false;
  LocalWorker worker(options);
  const ProgramHandle handle = worker.register_program(builder.finish({}));
  Cancellation cancellation;
  std::jthread other([&] { cancellation.cancel(); });

  const Status status =
      status_after([&] { worker.run(handle, {torch::tensor(int64_t{1} << 62)}, {.cancellation = &cancellation}); });

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace muster
