#include <ATen/ATen.h>
#include <absl/base/thread_annotations.h>
#include <absl/cleanup/cleanup.h>
#include <absl/synchronization/mutex.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/elastic_pool.h"
#include "muster/base/status.h"
#include "muster/data/files/numpy_file.h"
#include "muster/data/files/numpy_writer.h"
#include "muster/fit/exported/loaded_model.h"
#include "muster/io/json_words.h"
#include "muster/runtime/memory/tensors.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = size_t{64} << 20;  // of a request

struct RunModelOptions {
  std::string file;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  bool info = false;
  bool cast = false;
  std::optional<int> port;
  std::string host = "127.0.0.1";
};

json nested_lists(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
    if (tensor.is_complex()) throw invalid_argument("complex numbers have no form in JSON; write them to a .npy file");
    return tensor.is_floating_point() ? json(tensor.item<double>()) : json(tensor.item<int64_t>());
  }
  json list = json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(nested_lists(tensor[i]));
  return list;
}

// The numbers of nested lists, and how many there are in each level.
void flatten_lists(const json& value, size_t depth, std::vector<int64_t>& sizes, std::vector<double>& numbers) {
  if (value.is_array()) {
    if (depth == sizes.size()) {
      if (!numbers.empty() || depth >= 16) throw invalid_argument("lists of different depths");
      sizes.push_back(static_cast<int64_t>(value.size()));
    } else if (sizes[depth] != static_cast<int64_t>(value.size())) {
      throw invalid_argument("lists of ", sizes[depth], " and of ", value.size(), " elements side by side");
    }
    for (const json& element : value) flatten_lists(element, depth + 1, sizes, numbers);
  } else if (value.is_string()) {
    throw invalid_argument(
        "expected numbers, got a text: the program that asks makes numbers of words, as the one did "
        "that has trained the model");
  } else if (depth != sizes.size() || value.is_object()) {
    throw invalid_argument("expected lists of numbers, all of them equally deep");
  } else if (value.is_null()) {
    numbers.push_back(std::numeric_limits<double>::quiet_NaN());  // JSON has no other word for it
  } else {
    numbers.push_back(value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>());
  }
}

// With the element type of the input. Throws for a number that is none of that type, such as 3.5 for integers, or 1e39
// for float32, where it would be infinite.
at::Tensor converted(const at::Tensor& given, const ModelTensor& input) {
  if (given.is_complex() && !at::isComplexType(scalar_type_of(input.spec.dtype))) {
    throw invalid_argument("input \"", input.name, "\": complex numbers are no ", name_of(input.spec.dtype),
                           ", which the model takes");
  }
  at::Tensor tensor = given.to(scalar_type_of(input.spec.dtype));
  if (given.is_complex()) return tensor;
  const bool integral = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  const at::Tensor changed =
      (integral ? tensor.to(given.scalar_type()).ne(given) : tensor.isinf().logical_and(given.isinf().logical_not()))
          .flatten();
  if (!changed.any().item<bool>()) return tensor;
  throw invalid_argument("input \"", input.name, "\": ", given.flatten()[changed.to(at::kLong).argmax()].item<double>(),
                         " is no ", name_of(input.spec.dtype), ", which the model takes");
}

at::Tensor tensor_from(const json& lists, const ModelTensor& input) {
  std::vector<int64_t> sizes;
  std::vector<double> numbers;
  try {
    flatten_lists(lists, 0, sizes, numbers);
  } catch (const Error& error) {
    throw invalid_argument("input \"", input.name, "\": ", error.status().message());
  }
  // Integers above 2^53 would not come through.
  return converted(at::tensor(numbers, at::kDouble).reshape(sizes), input);
}

// A body of brackets alone would take a hundred times its bytes.
json shallow_json(const std::string& body) {
  static constexpr int kMostLevels = 20;  // of lists, and the names around them
  return json::parse(body, [](int depth, json::parse_event_t, json&) {
    if (depth > kMostLevels) throw invalid_argument("expected lists of numbers, at most ", kMostLevels, " deep");
    return true;
  });
}

// Not Request::body: of what says that it is a form, as all does that curl sends by -d, that would be 8 KiB at most.
std::string body_of(const httplib::Request& request, const httplib::ContentReader& read) {
  std::string body;
  const auto take = [&](const char* bytes, size_t count) {
    body.append(bytes, count);
    return true;
  };
  if (request.is_multipart_form_data()) {
    read([](const httplib::MultipartFormData&) { return true; }, take);
    throw invalid_argument("a form in several parts, expected JSON");
  }
  read(take);  // what is too large, or ends too early, httplib answers itself
  return body;
}

json json_of_tensors(const std::vector<ModelTensor>& tensors) {
  json list = json::array();
  for (const ModelTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name}, {"dtype", name_of(tensor.spec.dtype)}, {"shape", tensor.spec.sizes}});
  }
  return list;
}

json answer_to(const LoadedModel& model, const json& request) {
  if (!request.is_object() || !request.contains("inputs") || !request["inputs"].is_object()) {
    throw invalid_argument(R"(expected {"inputs": {"name": [numbers]}})");
  }
  std::map<std::string, at::Tensor> inputs;
  for (const auto& [name, lists] : request["inputs"].items()) {
    at::Tensor tensor;  // of a name that the model has not: undefined, and the model says so
    for (const ModelTensor& input : model.signature().inputs) {
      if (input.name == name) tensor = tensor_from(lists, input);
    }
    inputs[name] = tensor;
  }
  json outputs = json::object();
  for (const auto& [name, tensor] : model.run_named(inputs)) outputs[name] = nested_lists(tensor.cpu());
  return {{"outputs", outputs}};
}

// A thread for each connection, so that those who say nothing keep nobody waiting.
class Connections : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override { pool_->submit(std::move(task)); }
  void shutdown() override { pool_.reset(); }

 private:
  static constexpr int kMost = 1024;
  std::optional<ElasticPool> pool_{std::in_place, "connections", kMost};
};

// So many requests are computed at a time, and as many bytes of them as the largest may have; the others wait for their
// turn. What JSON says in a byte takes 20 to 30 bytes of memory when it is read.
class Turns {
 public:
  template <class Compute>
  auto take(size_t bytes, const Compute& compute) {
    {
      auto is_free = [this, bytes]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return free_ > 0 && free_bytes_ >= bytes; };
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&is_free));
      --free_;
      free_bytes_ -= bytes;
    }
    const absl::Cleanup over = [this, bytes] {
      absl::MutexLock lock(&mu_);
      ++free_;
      free_bytes_ += bytes;
    };
    return compute();
  }

 private:
  absl::Mutex mu_;
  unsigned free_ ABSL_GUARDED_BY(mu_) = std::max(8u, std::thread::hardware_concurrency());
  size_t free_bytes_ ABSL_GUARDED_BY(mu_) = kMostBytes;
};

// What httplib answers itself has no body.
void explain_error(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  const std::string what = response.status == 404 ? str_cat("there is no ", request.method, " ", request.path,
                                                            "; GET / says what the model takes, and POST /run runs it")
                           : response.status == 413
                               ? str_cat("a request has at most ", kMostBytes >> 20, " MiB")
                               : str_cat("the request is refused with HTTP status ", response.status);
  response.set_content(json{{"error", what}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n",
                       "application/json");
}

void serve(const LoadedModel& model, const RunModelOptions& options) {
  httplib::Server server;
  Turns turns;
  server.new_task_queue = [] { return new Connections; };  // httplib deletes it
  server.set_error_handler(explain_error);
  server.set_payload_max_length(kMostBytes);
  // An answer is two packets, of which the second would wait until the client has confirmed the first, for 40 ms.
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(std::numeric_limits<size_t>::max());
  // Not as httplib does it: with SO_REUSEPORT a second server would take half of the requests of the first.
  server.set_socket_options([](int socket) {
    const int yes = 1;  // a port whose last server has just ended is free
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.Get("/", [&](const httplib::Request&, httplib::Response& response) {
    const ModelSignature& signature = model.signature();
    const json said{{"name", signature.name},
                    {"inputs", json_of_tensors(signature.inputs)},
                    {"outputs", json_of_tensors(signature.outputs)},
                    {"batch_sizes", signature.any_batch ? json("any") : json(signature.batch_sizes)}};
    response.set_content(said.dump() + "\n", "application/json");
  });
  server.Post(
      "/run", [&](const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
        json said;
        std::string body;
        try {
          body = body_of(request, read);
          if (response.status >= 400) return;
          said = turns.take(body.size(), [&] { return answer_to(model, shallow_json(body)); });
        } catch (const json::exception& error) {
          response.status = 400;
          said = {{"error", json_words(error, body.size())}};
        } catch (const Error& error) {
          const bool of_the_request =
              error.code() == StatusCode::kInvalidArgument || error.code() == StatusCode::kOutOfRange;
          response.status = of_the_request ? 400 : 500;
          said = {{"error", error.what()}};
        } catch (const std::exception& error) {
          response.status = 500;
          said = {{"error", error.what()}};
        }
        response.set_content(said.dump(-1, ' ', false, json::error_handler_t::replace) + "\n", "application/json");
      });
  const int port = *options.port == 0                                 ? server.bind_to_any_port(options.host)
                   : server.bind_to_port(options.host, *options.port) ? *options.port
                                                                      : -1;
  if (port < 0) {
    throw unavailable("cannot listen on ", options.host, ":", *options.port,
                      "; somebody else does, or the address is not this machine's");
  }
  std::cout << "serving \"" << model.signature().name << "\" on http://" << options.host << ":" << port << "/run"
            << std::endl;
  server.listen_after_bind();
}

// "x=a.npy" by name, "a.npy" in the order of the inputs.
std::map<std::string, at::Tensor> read_inputs(const ModelSignature& signature, const RunModelOptions& options) {
  std::map<std::string, at::Tensor> inputs;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    const size_t equals = options.inputs[i].find('=');
    const bool named = equals != std::string::npos;
    if (!named && i >= signature.inputs.size()) {
      throw invalid_argument("--input ", options.inputs[i], ": the model has ", signature.inputs.size(), " inputs");
    }
    const std::string name = named ? options.inputs[i].substr(0, equals) : signature.inputs[i].name;
    at::Tensor tensor = read_npy(named ? options.inputs[i].substr(equals + 1) : options.inputs[i]);
    for (const ModelTensor& input : signature.inputs) {
      if (options.cast && input.name == name) tensor = converted(tensor, input);
    }
    if (!inputs.emplace(name, tensor).second) throw invalid_argument("--input: there are two of input \"", name, "\"");
  }
  return inputs;
}

void run_model(const RunModelOptions& options) {
  const LoadedModel model = LoadedModel::load(options.file);
  const ModelSignature& signature = model.signature();
  if (options.port) return serve(model, options);
  if (options.info || options.inputs.empty()) {
    std::cout << signature.to_string();
    if (options.inputs.empty()) return;
  }
  if (!options.outputs.empty() && options.outputs.size() != signature.outputs.size()) {
    throw invalid_argument("--output ", options.outputs.size(), " times, but the model has ", signature.outputs.size(),
                           " outputs");
  }
  const std::map<std::string, at::Tensor> outputs = model.run_named(read_inputs(signature, options));
  json printed = json::object();
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const at::Tensor output = outputs.at(signature.outputs[i].name).cpu();
    if (options.outputs.empty()) {
      printed[signature.outputs[i].name] = nested_lists(output);
    } else {
      write_npy(options.outputs[i], output);
    }
  }
  if (options.outputs.empty()) std::cout << printed.dump() << "\n";
}

}  // namespace

void add_run_model(CLI::App& muster) {
  auto options = std::make_shared<RunModelOptions>();
  CLI::App* command = muster.add_subcommand("run-model", "Run a model that export_model has written, or serve it");
  command->add_option("FILE", options->file, "The exported model")->required();
  command->add_option("--input", options->inputs,
                      "x.npy or NAME=x.npy, for each input; none: the signature is printed");
  command->add_option("--output", options->outputs, "y.npy, for each output; none: they are printed as JSON");
  command->add_flag("--info", options->info, "Print what the model takes and gives");
  command->add_flag("--cast", options->cast, "Convert the element types of the inputs, such as numpy's float64");
  command->add_option("--serve", options->port, "Answer HTTP requests on this port; 0: one that is free")
      ->check(CLI::Range(0, 65535));
  command->add_option("--host", options->host, "The address to listen on")->capture_default_str();
  command->footer(
      "Examples:\n"
      "  muster run-model digits.safetensors --input x.npy --output y.npy\n"
      "  muster run-model digits.safetensors --serve 8000 &\n"
      "  curl localhost:8000/run -d '{\"inputs\": {\"input\": [[0.5, 1]]}}'");
  command->callback([options] { run_model(*options); });
}

}  // namespace muster::tools
