#include "muster/runtime/worker/local_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/serialize.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;

LocalWorkerOptions two_cpus() { return {.devices = {.cpus = 2, .gpus = false}}; }

Program sum_of_two(const std::string& device = "") {
  Builder builder;
  ValueId x = builder.argument(), y = builder.argument();
  return builder.finish({builder.add(x, y, device)});
}

Status failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

TEST(LocalWorker, RunsRegisteredPrograms) {
  LocalWorker worker(two_cpus());

  ProgramHandle handle = worker.register_program(sum_of_two());
  auto outputs = worker.run(handle, {torch::ones({2, 2}), torch::ones({2, 2})});

  EXPECT_TRUE(torch::equal(outputs.at(0), torch::full({2, 2}, 2.0F)));
  EXPECT_EQ(worker.status().programs, 1u);
}

TEST(LocalWorker, ForgetsADeregisteredProgram) {
  LocalWorker worker(two_cpus());
  ProgramHandle handle = worker.register_program(sum_of_two());

  worker.deregister_program(handle);

  Status status = failure([&] { worker.run(handle, {}); });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), str_cat("program ", handle.id, " is not registered at /job:localhost/replica:0/task:0"));
}

TEST(LocalWorkerOfTheProcess, KeepsItsGpusOnceItIsInUse) {
  const std::vector<std::string> before = local_worker().devices().names();

  EXPECT_FALSE(share_local_gpus({.place = 1, .tasks = 2}));

  EXPECT_EQ(local_worker().devices().names(), before);
}

// A thousand workers have the same part at a parameter server.
TEST(LocalWorker, PlansProgramsOfTheSameBytesOnce) {
  LocalWorkerOptions options = two_cpus();
  options.max_programs = 2;
  LocalWorker worker(options);
  const std::string bytes = serialize(sum_of_two());
  std::vector<ProgramHandle> handles;
  for (uint64_t owner = 1; owner <= 100; ++owner) handles.push_back(worker.register_bytes(bytes, {.id = owner}));
  EXPECT_EQ(worker.status().programs, 100u) << "each has a handle of its own";

  worker.register_bytes(serialize(sum_of_two("/device:CPU:1")));
  const Status full = failure([&] { worker.register_program(sum_of_two()); });
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("has 2 programs registered, which is its limit"));

  worker.deregister_program(handles[0]);
  EXPECT_EQ(failure([&] { worker.run(handles[0], {}); }).code(), StatusCode::kNotFound);
  EXPECT_TRUE(torch::equal(worker.run(handles[1], {torch::ones({2, 2}), torch::ones({2, 2})}).at(0),
                           torch::full({2, 2}, 2.0F)));
}

TEST(LocalWorker, RefusesATruncatedOrBitFlippedProgram) {
  const std::string bytes = serialize(sum_of_two());
  LocalWorker worker(two_cpus());

  Status cut = failure([&] { parse_program(bytes.substr(0, bytes.size() / 2)); });
  EXPECT_EQ(cut.code(), StatusCode::kDataLoss);
  EXPECT_THAT(cut.message(), HasSubstr("are not a program (damaged or cut short)"));
  int refused = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    refused += !failure([&] { worker.register_program(parse_program(damaged)); }).ok();
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size()));  // the rest changed a name, a size or a seed
}

TEST(LocalWorker, RefusesAnOpThatIsNotAllowed) {
  LocalWorker worker(two_cpus());
  Builder builder;
  Program program = builder.finish({});
  Instruction load{.op = program.intern_op("aten::from_file", *muster::schema_of("aten::from_file"))};
  load.arguments = {{std::string("/etc/passwd")}, {None{}}, {int64_t{10}}, {None{}}, {None{}}, {None{}}, {None{}}};
  load.results = {{program.new_value()}};
  program.instructions.push_back(load);
  program.outputs = {0};

  Status status = failure([&] { worker.register_program(program); });

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(),
            "op aten::from_file is not allowed in programs; a task that trusts it lists it in "
            "LocalWorkerOptions::extra_ops");
}

TEST(LocalWorker, RefusesAnOpWhoseSchemaIsNotOurs) {
  LocalWorker worker(two_cpus());
  Program program = sum_of_two();
  program.ops[0].schema = "aten::add.Tensor(Tensor self, Tensor other, *, int alpha=1) -> Tensor";

  Status status = failure([&] { worker.register_program(program); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("op aten::add.Tensor was recorded as"));
  EXPECT_THAT(status.message(), HasSubstr("trace the program with the same version of libtorch"));
}

TEST(LocalWorker, RefusesAnArgumentOfTheWrongType) {
  LocalWorker worker(two_cpus());
  ProgramHandle handle = worker.register_program(sum_of_two());

  Status status = failure([&] { worker.run(handle, {torch::ones({2, 2}), torch::ones({2, 2}, torch::kLong)}); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "program \"step\": argument 1 is int64[2, 2], expected float32[2, 2]");
}

TEST(LocalWorker, NamesADeviceThatDoesNotExist) {
  LocalWorkerOptions options = two_cpus();
  options.soft_placement = false;
  LocalWorker strict(options);

  Status status = failure([&] { strict.register_program(sum_of_two("/device:GPU:7")); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("GPU:7"));
  EXPECT_THAT(status.message(), HasSubstr("/job:localhost/replica:0/task:0/device:CPU:1"));
}

TEST(LocalWorker, FallsBackToADeviceThatExistsWithALogLine) {
  LocalWorker soft(two_cpus());
  LogCapture log;

  ProgramHandle handle = soft.register_program(sum_of_two("/device:GPU:7"));

  EXPECT_TRUE(
      torch::equal(soft.run(handle, {torch::ones({2, 2}), torch::ones({2, 2})}).at(0), torch::full({2, 2}, 2.0F)));
  EXPECT_TRUE(log.contains("GPU:7"));
}

TEST(LocalWorker, PrintsWhereEverythingRunsWhenAsked) {
  LocalWorkerOptions options = two_cpus();
  options.log_device_placement = true;
  LocalWorker worker(options);
  LogCapture log;

  worker.register_program(sum_of_two("/device:CPU:1"));

  EXPECT_TRUE(log.contains("aten::add.Tensor"));
  EXPECT_TRUE(log.contains("/job:localhost/replica:0/task:0/device:CPU:1"));
}

TEST(LocalWorker, RefusesAProgramOverItsLimits) {
  LocalWorkerOptions options = two_cpus();
  options.limits.instructions = 2;
  LocalWorker worker(options);
  Builder builder;
  ValueId value = builder.argument();
  for (int i = 0; i < 3; ++i) value = builder.relu(value);

  EXPECT_EQ(failure([&] { worker.register_program(builder.finish({value})); }).code(), StatusCode::kResourceExhausted);
}

TEST(LocalWorker, FoldsWhatDependsOnConstantsOnly) {
  LocalWorker worker(two_cpus());
  Builder builder;
  ValueId a = builder.constant(2.0, false), b = builder.constant(3.0, false);
  ValueId sum = builder.add(a, b);
  ProgramHandle handle = worker.register_program(builder.finish({builder.relu(sum)}));

  EXPECT_EQ(worker.prepared_program(handle).instructions.size(), 1u);  // an output is not the program's own constant
  EXPECT_EQ(worker.run(handle, {}).at(0).item<double>(), 5);
}

TEST(LocalWorker, RunsFusedUpdatesWithTheSameBits) {
  auto values_after = [](bool fuse) {
    LocalWorkerOptions options = two_cpus();
    options.passes.fuse = fuse;
    LocalWorker worker(options);
    torch::manual_seed(7);
    Builder builder;
    std::vector<at::Tensor> gradients;
    for (const char* name : {"a", "b", "c"}) {
      worker.store().declare(name, {DType::kFloat, {2, 2}}, at::kCPU)->assign(torch::rand({2, 2}));
      ValueId gradient = builder.argument();
      builder.op("aten::add_.Tensor", {ref(builder.variable(name)), ref(gradient), {-0.1}});
      gradients.push_back(torch::rand({2, 2}));
    }
    ProgramHandle handle = worker.register_program(builder.finish({}));
    EXPECT_EQ(worker.prepared_program(handle).instructions.size(), fuse ? 1u : 3u);
    for (int i = 0; i < 3; ++i) worker.run(handle, gradients);
    std::vector<at::Tensor> values;
    for (const auto& cell : worker.store().all()) values.push_back(cell->read());
    return torch::stack(values);
  };

  EXPECT_TRUE(torch::equal(values_after(true), values_after(false)));
}

TEST(LocalWorker, CountsItsVariables) {
  LocalWorker worker(two_cpus());
  worker.store().declare("w", {DType::kFloat, {10, 10}}, at::kCPU);

  EXPECT_EQ(worker.status().variables, 1u);
  EXPECT_EQ(worker.status().variable_bytes, 400);
}

TEST(LocalWorker, LetsAReaderWaitWhenAnotherOneOfItsValueHasGivenUp) {
  LocalWorker worker(two_cpus());
  Cancellation alive, gone;
  gone.cancel();
  std::optional<Status> first, second;
  auto into = [](std::optional<Status>& end) {
    return [&end](const Status& status, const at::Tensor&) { end = status; };
  };

  worker.receive(7, 1, {.cancellation = &alive}, into(first));
  worker.receive(7, 1, {.cancellation = &gone}, into(second));

  EXPECT_FALSE(first);
  EXPECT_EQ(second.value().code(), StatusCode::kAlreadyExists);
  alive.cancel();
  EXPECT_EQ(first.value().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace muster
