#include "muster/graph/dump.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/graph/checker.h"
#include "muster/graph/device_spec.h"
#include "muster/graph/passes/passes.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/ops/evaluate.h"
#include "muster/runtime/ops/op_catalog.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

struct DumpOptions {
  std::string file;
  bool dot = false;
  bool optimized = false;
  bool placed = false;
};

std::string read_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw not_found(path, ": is a directory, not a program");
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) throw not_found(path, ": cannot be read (", strerror(errno), ")");
  return {std::istreambuf_iterator<char>(in), {}};
}

Program read_program(const std::string& path) {
  try {
    Program program = parse_program(read_file(path));
    check(program);
    return program;
  } catch (const Error& error) {
    if (error.code() == StatusCode::kNotFound) throw;
    throw Error(Status(error.code(), str_cat(path, ": ", error.status().message())));
  }
}

PassReport run_passes(Program& program) {
  const OpCatalog catalog;
  verify_schemas(program);
  return optimize(
      program, {}, [&](const Program& p, const Instruction& instruction) { return evaluate(catalog, p, instruction); },
      [](const std::string& op) { return schema_of(op); });
}

void add_devices(const Program& program, std::vector<std::string>& devices) {
  for (const std::string& wish : program.devices) {
    std::string device = canonical_device(wish);
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(std::move(device));
  }
  for (const Program& body : program.bodies) add_devices(body, devices);
}

// Places the program as if every device that it names were there.
Program place_as_wished(Program program) {
  PlacerOptions options{.devices = {}, .default_device = canonical_device("")};
  add_devices(program, options.devices);
  return place(std::move(program), options);
}

void run(const DumpOptions& options) {
  Program program = read_program(options.file);
  if (!options.optimized && !options.placed) {
    if (options.dot) {
      std::cout << dot(program);
      return;
    }
    std::cout << "As it was traced:\n" << dump(program);
  }
  const PassReport report = run_passes(program);
  if (options.placed) program = place_as_wished(std::move(program));
  if (options.dot) {
    std::cout << dot(program);
  } else if (options.optimized || options.placed) {
    std::cout << dump(program);
  } else {
    std::cout << "\nAfter the passes (" << report.to_string() << "):\n" << dump(program);
  }
}

}  // namespace

void add_dump(CLI::App& muster) {
  auto options = std::make_shared<DumpOptions>();
  CLI::App* dump = muster.add_subcommand("dump", "Show a program, before and after the passes");
  dump->add_option("FILE", options->file, "What muster::serialize() has written")->required();
  dump->add_flag("--dot", options->dot, "As a picture for graphviz: muster dump --dot FILE | dot -Tsvg");
  dump->add_flag("--optimized", options->optimized, "After the passes only");
  dump->add_flag("--placed", options->placed, "After the passes, on devices, with the copies between them");
  dump->callback([options] { run(*options); });
}

}  // namespace muster::tools
