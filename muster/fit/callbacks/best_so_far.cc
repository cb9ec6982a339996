#include "muster/fit/callbacks/best_so_far.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/model.h"

namespace muster {
namespace {

// "iou" at the end of a word, as in mean_iou and miou, but not as in previous; "top_5", "top5" and "top_k".
bool says_iou_or_top(const std::string& monitor) {
  const std::vector<std::string> words = absl::StrSplit(monitor, '_');
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].ends_with("iou")) return true;
    if (!words[i].starts_with("top")) continue;
    const std::string how_many = words[i] != "top" ? words[i].substr(3) : i + 1 < words.size() ? words[i + 1] : "";
    int64_t number = 0;
    if (how_many == "k" || absl::SimpleAtoi(how_many, &number)) return true;
  }
  return false;
}

bool has_part(const std::string& monitor, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return monitor.find(part) != std::string::npos; });
}

bool has_word(const std::string& monitor, std::initializer_list<const char*> words) {
  const std::vector<std::string> its = absl::StrSplit(monitor, '_');
  return std::ranges::any_of(words, [&](const char* word) { return std::ranges::count(its, word) > 0; });
}

// Whether larger ones are better, if the name says that.
std::optional<bool> larger_by_name(const std::string& monitor) {
  if (monitor.ends_with("loss") || monitor.ends_with("error")) return false;
  if (has_part(monitor, {"accuracy", "precision", "recall"}) || says_iou_or_top(monitor)) return true;
  // Short ones as words by themselves: they are in names such as decoder2, sauce and radio_user, too.
  if (has_word(monitor, {"acc", "auc", "f1", "r2"}) || has_part(str_cat("_", monitor, "_"), {"_io_u_"})) return true;
  if (has_part(monitor, {"loss", "error", "entropy", "divergence", "perplexity", "hinge", "poisson"})) return false;
  if (has_word(monitor, {"mse", "rmse", "mae", "mape", "msle", "nll"})) return false;
  return std::nullopt;
}

}  // namespace

double value_of(const Logs& logs, const std::string& name, const char* callback) {
  const auto found = logs.find(name);
  if (found != logs.end()) return found->second;
  std::vector<std::string> there;
  bool validated = false;
  for (const auto& [each, value] : logs) {
    there.push_back(each);
    validated = validated || each.starts_with("val_");
  }
  std::vector<std::string> possible = there;
  for (size_t i = 0; i < there.size() && !validated; ++i) possible.push_back("val_" + there[i]);
  const std::string meant = nearest_name(name, possible);
  const bool of_validation = !validated && meant.starts_with("val_");
  throw not_found(callback, " asks for \"", name, "\", but an epoch has ", absl::StrJoin(there, ", "),
                  meant.empty()   ? ""
                  : meant == name ? "; validation_data gives it"
                                  : str_cat("; did you mean \"", meant, "\"",
                                            of_validation ? ", which validation_data gives?" : "?"));
}

std::string in_all_digits(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

BestSoFar::BestSoFar(std::string monitor, Better better, double min_delta)
    : monitor_(std::move(monitor)), min_delta_(min_delta) {
  const std::optional<bool> by_name = larger_by_name(monitor_);
  larger_ = better == Better::kAuto ? by_name.value_or(false) : better == Better::kLarger;
  guessed_ = better == Better::kAuto && !by_name;
}

std::string BestSoFar::memory(const std::string& whose, const std::vector<int64_t>& more) const {
  return absl::StrJoin({whose + " " + monitor_, best_ ? in_all_digits(*best_) : "none", absl::StrJoin(more, "\n")},
                       "\n");
}

std::vector<int64_t> BestSoFar::remember(const std::string& whose, const std::string& memory, size_t count) {
  const std::vector<std::string> lines = absl::StrSplit(memory, '\n');
  if (lines.size() != count + 2 || lines[0] != whose + " " + monitor_) return {};
  std::vector<int64_t> more(count);
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleAtoi(lines[i + 2], &more[i])) return {};
  }
  double best = 0;
  best_ = absl::SimpleAtod(lines[1], &best) ? std::optional(best) : std::nullopt;
  return more;
}

void BestSoFar::expect_in(const Training& training, const char* whose) const {
  if (training.numbers) {
    Logs there;
    for (const std::string& name : *training.numbers) there.set(name, 0);
    value_of(there, monitor_, whose);
  }
  if (training.model.strategy().is_chief()) warn_if_guessed(whose);
}

void BestSoFar::warn_if_guessed(const char* whose) const {
  if (!guessed_) return;
  MUSTER_LOG(warning) << whose << ": whether smaller or larger is better is not known of the name \"" << monitor_
                      << "\"; taken for better if smaller. The option better says it";
}

bool BestSoFar::improves(const Logs& logs, const char* whose) {
  const double value = value_of(logs, monitor_, whose);
  if (std::isnan(value)) return false;
  if (best_ && !better(value, *best_)) return false;
  best_ = value;
  return true;
}

bool BestSoFar::better(double value, double than) const {
  return larger_ ? value > than + min_delta_ : value < than - min_delta_;
}

}  // namespace muster
