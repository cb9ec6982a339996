// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "muster/base/status.h"
#include "muster/cluster/cluster_json.h"
#include "muster/cluster/resolvers/kubernetes_config.h"
#include "muster/cluster/resolvers/slurm_hostlist.h"
#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"

namespace muster::testing_support {

// What says which tasks there are. The first byte says what the others are: '0' a cluster as JSON, '1' a TF_CONFIG, '2'
// a kubeconfig, '3' a list of Slurm's hosts. Returns whether it was taken for that.
inline bool try_cluster(const std::string& bytes) {
  if (bytes.empty()) return false;
  const std::string text = bytes.substr(1);
  try {
    switch (bytes.front()) {
      case '0': cluster_spec_of(parse_json(text, "cluster"), "cluster"); return true;
      case '1': {
        TfConfigResolver resolver({.text = text});
        resolver.cluster_spec();
        resolver.task();
        return true;
      }
      case '2': {
        const std::string path = "/tmp/muster_kubeconfig." + std::to_string(getpid());
        std::ofstream(path, std::ios::binary) << text;
        struct Remove {
          const std::string& path;
          ~Remove() { std::remove(path.c_str()); }
        } remove{path};
        KubernetesConfig::from_kubeconfig(path);
        return true;
      }
      case '3': expand_hostlist(text); return true;
      default: return false;
    }
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support
