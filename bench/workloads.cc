#include "bench/workloads.h"

namespace muster::bench {

const std::vector<Workload>& workloads() {
  static const std::vector<Workload>& table = *new std::vector<Workload>{
      {"mlp_local",
       "a multilayer perceptron trained in this process: traced with 1 and 10 steps per call, and eager libtorch",
       {{"2threads", 2}, {"1threads", 1}},
       mlp_local},
      {"cnn_local",
       "a small convolutional net trained in this process: traced, and eager libtorch",
       {{"2threads", 2}, {"1threads", 1}},
       cnn_local},
      {"mirrored_mlp",
       "the net of mlp_local on two logical devices of this process: 1 and 10 steps per call",
       {{"mirrored", 1}, {"central_storage", 1}},
       mirrored_mlp},
      {"allreduce",
       "a sum over two processes: 100 MB, and 1 KB by calls and in a loop of one program",
       {{"processes", 1}, {"network", 1}},
       allreduce},
      {"mwms_mlp",
       "the net of mlp_local in two processes that train in step: 1 and 10 steps per call",
       {{"processes", 1}},
       mwms_mlp},
      {"overlap",
       "two processes that train a deep net in step: how much of their sums the backward pass hides",
       {{"processes", 1}},
       overlap},
      {"trace",
       "what tracing and replaying cost: time to trace, time per op, peak memory of a deep net",
       {{"tracing", 1}, {"per_op", 1}, {"memory", 2}},
       trace},
      {"session_run",
       "a client's steps on a worker process, with and without variables on a parameter server process",
       {{"processes", 1}},
       session_run},
      {"startup",
       "three workers, two parameter servers and a client as processes, from their start to the first result",
       {{"processes", 1}},
       startup},
      {"wire",
       "tensors and small calls between two processes, beside plain TCP and plain gRPC",
       {{"processes", 1}},
       wire},
      {"closure_rate",
       "small functions that a coordinator schedules on 3 workers: how many a second",
       {{"inprocess", 1}, {"processes", 1}},
       closure_rate},
      {"closure_latency",
       "the same, one at a time: how long it takes",
       {{"inprocess", 1}, {"processes", 1}},
       closure_latency},
      {"ps_mlp",
       "a multilayer perceptron on 1 parameter server, trained by 2 workers: 1 and 10 steps per closure",
       {{"processes", 1}},
       ps_mlp},
      {"ps_bandwidth",
       "a variable of 64 MiB on a parameter server, read and added to by a worker",
       {{"processes", 1}, {"network", 1}, {"bfloat16", 1}, {"deflate", 1}},
       ps_bandwidth},
      {"ctr_embedding",
       "a click model with 26 tables on 2 parameter servers, trained by 2 workers",
       {{"processes", 1}},
       ctr_embedding},
      {"data_tfrecord",
       "200,000 examples of a TFRecord file, shuffled, batched and parsed by 1 and 2 threads",
       {{"1threads", 1}, {"2threads", 2}},
       data_tfrecord},
      {"data_csv",
       "200,000 lines of a CSV file with 40 columns, the same",
       {{"1threads", 1}, {"2threads", 2}},
       data_csv},
      {"data_images",
       "5,000 JPEG files of 256 x 256, their middle decoded and batched by 1 and 2 threads",
       {{"1threads", 1}, {"2threads", 2}},
       data_images},
      {"data_memory",
       "memory of a shuffle of 1,000,000 numbers, rows of 208 bytes and lines of 64 and 200, beside their bytes",
       {{"numbers", 1}, {"rows", 1}, {"lines_64", 1}, {"lines_200", 1}},
       data_memory},
      {"fit_local",
       "fit() of the net of mlp_local on 4,096 examples: 1 and 10 steps per execution, and the bare loop of its steps",
       {{"1threads", 1}, {"2threads", 2}},
       fit_local},
      {"fit_ps_mlp",
       "fit() of the net of mlp_local on a worker and a parameter server, over the bare loop that schedules its steps",
       {{"processes", 1}},
       fit_ps_mlp},
      {"fit_dense10",
       "fit() of a layer of 10 by 10 on 3 workers and 2 parameter servers: 1 and 10 steps per execution",
       {{"processes", 1}},
       fit_dense10},
      {"gpu_steps",
       "training steps on a GPU with their arguments there: traced with 1 and 10 steps per call, and eager libtorch",
       {{"mlp_fp32", 1}, {"transformer_fp32", 1}, {"transformer_tf32", 1}, {"cnn_fp32", 1}, {"cnn_bf16", 1}},
       gpu_steps},
      {"recovery",
       "a worker that is killed and started again, and a parameter server that is killed, during training",
       {{"worker", 1}, {"ps", 1}},
       recovery},
      {"checkpoint",
       "1 GiB of variables on 2 parameter servers saved and restored, beside the disk's own speed; training meanwhile",
       {{"processes", 1}, {"training", 1}},
       checkpoint},
      {"scale",
       "CPU time per closure with 1 to 32 workers, and memory of a parameter server and of a million closures that "
       "wait",
       {{"local", 1}, {"loopback", 1}, {"memory", 1}, {"ps_memory", 1}, {"idle", 1}},
       scale},
      {"scale_ps",
       "the net of ps_mlp with 1 to 12 workers and 1, 2 and 4 parameter servers, as far as there are cores",
       {{"1ps", 1}, {"2ps", 1}, {"4ps", 1}},
       scale_ps},
      {"scale_allreduce",
       "a sum over 2 to 8 processes, as far as there are cores: 100 MB and 1 KB, what each process sends, and what two "
       "promise for more",
       {{"processes", 1}, {"network", 1}},
       scale_allreduce},
  };
  return table;
}

const Workload* find_workload(std::string_view name) {
  for (const Workload& workload : workloads()) {
    if (workload.name == name) return &workload;
  }
  return nullptr;
}

const Part* find_part(const Workload& workload, std::string_view name) {
  for (const Part& part : workload.parts) {
    if (part.name == name) return &part;
  }
  return nullptr;
}

}  // namespace muster::bench
