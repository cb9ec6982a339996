#include "muster/runtime/tuning/machine_name.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "muster/base/strings.h"

namespace muster {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What follows "name :" on the first line that begins so; empty if none does.
std::string entry(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string_view::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin == std::string_view::npos) return "";
    std::string value(line.substr(begin));
    std::replace_if(value.begin(), value.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
    return value;
  }
  return "";
}

// The driver says so without the headers of CUDA. With several kinds in a machine their order is not known here.
std::string gpu_name(const c10::Device& device) {
  std::set<std::string> models;
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    models.insert(entry(text_of(gpu.path() / "information"), "Model"));
  }
  if (models.size() == 1 && !models.begin()->empty()) return *models.begin();
  std::string all = "GPU";
  for (const std::string& model : models) str_append(all, " ", model);
  return str_cat(all, " ", device.str());
}

}  // namespace

std::string processor_in(std::string_view cpuinfo) {
  if (std::string model = entry(cpuinfo, "model name"); !model.empty()) return model;
  const std::string implementer = entry(cpuinfo, "CPU implementer"), part = entry(cpuinfo, "CPU part");
  if (!part.empty()) return str_cat("processor ", implementer, "/", part);
  return "processor of unknown model";
}

std::string machine_of(const c10::Device& device) {
  static const std::string processor = processor_in(text_of("/proc/cpuinfo"));
  const std::string libtorch = str_cat(", libtorch ", TORCH_VERSION);
  if (!device.is_cpu()) return str_cat(gpu_name(device), libtorch);
  return str_cat(processor, " ", at::get_cpu_capability(), ", threads: ", at::get_num_threads(), libtorch);
}

}  // namespace muster
