// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <absl/strings/escaping.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/fit/exported/loaded_model.h"

namespace muster::testing_support {

// The bytes are a letter and what it announces: 'f' the file of an exported model, 't' the text of one, 'p' a text with
// the bytes of its first program behind a zero byte: in base64, few of those that a fuzzer makes would be any.
inline std::string with_program(std::string_view bytes) {
  using nlohmann::json;
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= 10; };
  json text = json::parse(bytes.substr(0, end), shallow, /*allow_exceptions=*/false);
  if (!text.is_object()) return std::string(bytes.substr(0, end));
  const std::string program(bytes.substr(std::min(end + 1, bytes.size())));
  text["any"] = json::array();
  text["sized"] = json::array();
  text["sized"].push_back(json{{"batch", 2}, {"program", absl::Base64Escape(program)}});
  try {
    return text.dump();
  } catch (const json::exception&) {  // not in UTF-8
    return {};
  }
}

// Everything that is done with a model that is not trusted, but to run it: run_fuzzer runs programs. Returns whether it
// was taken for what it says it is.
inline bool try_model(std::string_view bytes) {
  if (bytes.empty()) return false;
  const char kind = bytes.front();
  bytes.remove_prefix(1);
  static const ScopedDirectory directory;
  try {
    if (kind == 'f') {
      const std::string path = directory.path() + "/model.safetensors";
      std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
      return LoadedModel::load(path).signature().to_string().starts_with("model ");
    }
    if (kind != 't' && kind != 'p') return false;
    const ExportedModel model =
        exported_model_from_text(kind == 'p' ? with_program(bytes) : std::string(bytes), "a model");
    for (const int64_t batch : {1, 2, 7}) {
      try {
        static_cast<void>(model.program_for(batch));
      } catch (const Error&) {
        MUSTER_CHECK(!model.any) << "it takes all sizes";
      }
    }
    const std::string text = to_text(model);
    MUSTER_CHECK(to_text(exported_model_from_text(text, "a model")) == text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support
