// How fast tensors and small calls cross a wire, beside what the wire itself can do.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <thread>

#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/rpc/remote_worker.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster::bench {
namespace {

constexpr int64_t kMega = 1'000'000;
constexpr int kSmallCalls = 2'000;

// Gives a variable as its result (pull), or writes its argument to the variable (push).
Program transfer(int64_t bytes, bool push, const std::string& device) {
  Program program;
  program.name = push ? "push" : "pull";
  const TensorSpec spec{DType::kFloat, {bytes / 4}};
  const ValueId variable = program.new_value();
  program.variables.push_back({variable, str_cat("wire", bytes), spec, program.intern_device(device)});
  if (!push) {
    program.outputs.push_back(variable);
    return program;
  }
  const ValueId given = program.new_value(), result = program.new_value();
  program.arguments.push_back({.value = given, .spec = spec});
  program.instructions.push_back({.op = program.intern_op("aten::copy_", *schema_of("aten::copy_")),
                                  .arguments = {{ValueRef{variable}}, {ValueRef{given}}, {false}},
                                  .results = {{result}}});
  return program;
}

// Bytes through a plain socket of the loopback device, from one thread to another.
double tcp_seconds(int64_t bytes) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  ::listen(listener, 1);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<char> from(bytes, 'x'), to(bytes, 0);
  std::thread reader([&] {
    const int end = ::accept(listener, nullptr, nullptr);
    for (int round = 0; round < 2; ++round) {
      for (int64_t got = 0; got < bytes;) {
        const ssize_t part = ::recv(end, to.data() + got, bytes - got, 0);
        if (part <= 0) return;
        got += part;
      }
      ::send(end, "k", 1, 0);
    }
    ::close(end);
  });
  const int end = ::socket(AF_INET, SOCK_STREAM, 0);
  ::connect(end, reinterpret_cast<sockaddr*>(&address), size);
  auto round = [&] {
    for (int64_t sent = 0; sent < bytes;)
      sent += std::max<ssize_t>(0, ::send(end, from.data() + sent, bytes - sent, 0));
    char answer = 0;
    ::recv(end, &answer, 1, 0);
  };
  round();  // the memory of both ends is touched
  const double time = seconds(round);
  reader.join();
  ::close(end);
  ::close(listener);
  return time;
}

double small_call_us(const std::function<void()>& call) {
  for (int i = 0; i < kSmallCalls / 10; ++i) call();
  return median_us(kSmallCalls, call);
}

void measure_transfers(RemoteWorker& worker, int64_t bytes, const std::string& name, const std::string& task,
                       Bench& bench) {
  const int times = static_cast<int>(std::max<int64_t>(4, 256 * kMega / bytes));
  const double giga = static_cast<double>(bytes) * times / 1e9;
  const ProgramHandle push = worker.register_program(transfer(bytes, true, task + "/device:CPU:0"));
  const ProgramHandle pull = worker.register_program(transfer(bytes, false, task + "/device:CPU:0"));
  const at::Tensor value = torch::randn({bytes / 4});
  for (int i = 0; i < 3; ++i) worker.run(push, {value});
  if (!torch::equal(worker.run(pull, {})[0], value)) throw internal("wire: a wrong value came back");
  bench.rate({"push_" + name, "GB/s"}, giga, [&] {
    for (int i = 0; i < times; ++i) worker.run(push, {value});
  });
  bench.rate({"pull_" + name, "GB/s"}, giga, [&] {
    for (int i = 0; i < times; ++i) worker.run(pull, {});
  });
}

}  // namespace

void wire(const Part&, Bench& bench) {
  ServerProcesses servers(0, 1);
  const std::string address = servers.spec().task_address("ps", 0), task = TaskId{"ps", 0}.to_string();
  RemoteWorker worker(std::make_shared<RpcChannel>(address, task, ChannelOptions{}));
  RemoteWorker far(std::make_shared<RpcChannel>(address, task, ChannelOptions{.near_memory = false}));
  worker.status(/*wait=*/true);
  for (int64_t megabytes : {1, 16, 64}) {
    const int64_t bytes = megabytes * kMega;
    const std::string name = str_cat(megabytes, "MB");
    measure_transfers(worker, bytes, name, task, bench);
    measure_transfers(far, bytes, name + "_network", task, bench);
    for (const char* direction : {"push_", "pull_"}) {
      bench.most({direction + name + "_network", "GB/s", "tcp"},
                 [&] { return static_cast<double>(bytes) / 1e9 / tcp_seconds(bytes); });
    }
  }
  const TensorSpec scalar{DType::kFloat, {1}};
  Program small;
  small.name = "small";
  const ValueId given = small.new_value();
  small.arguments.push_back({.value = given, .spec = scalar});
  small.outputs.push_back(given);
  const ProgramHandle handle = worker.register_program(small);
  const at::Tensor one = torch::ones({1});
  bench.least({"small_call", "us"}, [&] { return small_call_us([&] { worker.run(handle, {one}); }); });

  // The health check, which every gRPC server answers, is a call with nothing of ours in it.
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  bench.least({"small_call", "us", "grpc"}, [&] {
    return small_call_us([&] {
      grpc::ClientContext context;
      grpc::CompletionQueue queue;
      grpc::ByteBuffer request, answer;
      grpc::Slice empty;
      request = grpc::ByteBuffer(&empty, 1);
      grpc::Status status;
      auto reader = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
      reader->StartCall();
      reader->Finish(&answer, &status, nullptr);
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      if (!status.ok()) throw internal("the health check failed: ", status.error_message());
    });
  });
}

}  // namespace muster::bench
