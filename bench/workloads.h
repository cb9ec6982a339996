// What `muster bench` can measure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/measure.h"
#include "muster/cluster/cluster_spec.h"

namespace muster::bench {

// A part runs in a process of its own: libtorch has one thread pool per process, and peak memory never falls.
struct Part {
  std::string name;
  int threads;  // of libtorch
};

struct Workload {
  std::string name;  // as the peers call it
  std::string about;
  std::vector<Part> parts;
  void (*run)(const Part& part, Bench& bench);
};

const std::vector<Workload>& workloads();

// Null if there is none of this name.
const Workload* find_workload(std::string_view name);
const Part* find_part(const Workload& workload, std::string_view name);

// One function per file of this folder.
void mlp_local(const Part& part, Bench& bench);
void cnn_local(const Part& part, Bench& bench);
void mirrored_mlp(const Part& part, Bench& bench);
void allreduce(const Part& part, Bench& bench);
void scale_allreduce(const Part& part, Bench& bench);
void mwms_mlp(const Part& part, Bench& bench);
void overlap(const Part& part, Bench& bench);
void trace(const Part& part, Bench& bench);
void session_run(const Part& part, Bench& bench);
void startup(const Part& part, Bench& bench);
void wire(const Part& part, Bench& bench);
void closure_rate(const Part& part, Bench& bench);
void closure_latency(const Part& part, Bench& bench);
void ps_mlp(const Part& part, Bench& bench);
void ps_bandwidth(const Part& part, Bench& bench);
void ctr_embedding(const Part& part, Bench& bench);
void data_tfrecord(const Part& part, Bench& bench);
void data_csv(const Part& part, Bench& bench);
void data_images(const Part& part, Bench& bench);
void data_memory(const Part& part, Bench& bench);
void fit_local(const Part& part, Bench& bench);
void fit_ps_mlp(const Part& part, Bench& bench);
void fit_dense10(const Part& part, Bench& bench);
void gpu_steps(const Part& part, Bench& bench);
void recovery(const Part& part, Bench& bench);
void checkpoint(const Part& part, Bench& bench);
void scale(const Part& part, Bench& bench);
void scale_ps(const Part& part, Bench& bench);

// What the other processes of `allreduce`, `scale_allreduce`, `mwms_mlp` and `overlap` do.
void in_step_member(const ClusterSpec& spec, int index, const std::string& workload);
// What the client of `startup` does.
void first_result(const ClusterSpec& spec);

}  // namespace muster::bench
