#include "muster/graph/op_schema.h"

#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <algorithm>

#include "muster/base/status.h"

namespace muster {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Splits at commas that are outside of every bracket and quote.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  char quote = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quote) {
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == ',' && depth == 0) {
      parts.push_back(trim(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (std::string_view last = trim(text.substr(begin)); !last.empty()) parts.push_back(last);
  return parts;
}

// "Tensor(a!)[] self=None" -> type Tensor[], aliases "a", written, name "self".
SchemaArgument parse_argument(std::string_view text) {
  SchemaArgument argument;
  size_t i = 0;
  while (i < text.size() && text[i] != ' ') {
    if (text[i] == '(') {
      size_t close = text.find(')', i);
      if (close == std::string_view::npos) throw invalid_argument("schema: \"", text, "\" has an open bracket");
      std::string_view annotation = text.substr(i + 1, close - i - 1);
      argument.written = annotation.find('!') != std::string_view::npos;
      for (char c : annotation) {
        if (c == '*' || (c >= 'a' && c <= 'z')) argument.aliases += c;
      }
      i = close + 1;
    } else {
      argument.type += text[i++];
    }
  }
  std::string_view rest = trim(text.substr(i));
  argument.name = std::string(trim(rest.substr(0, rest.find('='))));
  return argument;
}

}  // namespace

bool OpSchema::writes() const {
  return std::any_of(arguments.begin(), arguments.end(), [](const SchemaArgument& a) { return a.written; });
}

bool OpSchema::random() const {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const SchemaArgument& a) { return a.type.starts_with("Generator"); });
}

OpSchema parse_schema(std::string_view schema) {
  size_t open = schema.find('(');
  size_t arrow = schema.find(") -> ");  // an alias annotation "(a -> *)" has its arrow inside the bracket
  if (open == std::string_view::npos || arrow == std::string_view::npos || arrow < open) {
    throw invalid_argument("schema: \"", schema, "\" is not of the form name(arguments) -> results");
  }
  OpSchema parsed;
  parsed.name = std::string(trim(schema.substr(0, open)));
  for (std::string_view part : split(schema.substr(open + 1, arrow - open - 1))) {
    if (part != "*") parsed.arguments.push_back(parse_argument(part));
  }
  std::string_view results = trim(schema.substr(arrow + 5));
  if (results.size() >= 2 && results.front() == '(' && results.back() == ')') {
    results = results.substr(1, results.size() - 2);
  }
  for (std::string_view part : split(results)) parsed.results.push_back(parse_argument(part));

  parsed.known = facts_of(parsed.name);
  for (SchemaArgument& argument : parsed.arguments) {
    const auto& hidden = parsed.known.hidden_writes;
    if (std::find(hidden.begin(), hidden.end(), argument.name) != hidden.end()) argument.written = true;
  }
  if (!parsed.known.hidden_alias.empty()) {
    for (SchemaArgument& argument : parsed.arguments) {
      if (argument.name == parsed.known.hidden_alias && argument.is_tensor()) argument.aliases = "a";
    }
    for (SchemaArgument& result : parsed.results) result.aliases = "a";
  }
  return parsed;
}

std::shared_ptr<const OpSchema> shared_schema(const std::string& schema) {
  constexpr size_t kMost = 4096;  // more than libtorch has; the rest is of strangers
  static absl::Mutex mu(absl::kConstInit);
  static auto& parsed = *new absl::flat_hash_map<std::string, std::shared_ptr<const OpSchema>>;
  {
    absl::MutexLock lock(&mu);
    if (const auto found = parsed.find(schema); found != parsed.end()) return found->second;
  }
  auto made = std::make_shared<const OpSchema>(parse_schema(schema));
  absl::MutexLock lock(&mu);
  if (parsed.size() >= kMost) parsed.clear();
  return parsed.try_emplace(schema, std::move(made)).first->second;
}

}  // namespace muster
