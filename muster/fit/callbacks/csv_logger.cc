#include "muster/fit/callbacks/csv_logger.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/callbacks/best_so_far.h"
#include "muster/fit/model.h"

namespace muster {
namespace {

constexpr const char* kEpochColumn = "epoch";

Error cannot_write(const std::string& path, const std::string& why) {
  return unavailable("CsvLogger: \"", path, "\" cannot be written: ", why);
}

// Of a plain file.
std::optional<uintmax_t> size_of(const std::string& path) {
  std::error_code none;
  const uintmax_t size = std::filesystem::file_size(path, none);
  return none ? std::nullopt : std::optional(size);
}

std::string quoted(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) return name;
  std::string text = "\"";
  for (const char c : name) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

std::string line_of_names(const std::vector<std::string>& columns) {
  std::string line = kEpochColumn;
  for (const std::string& name : columns) str_append(line, ",", quoted(name));
  return line + "\n";
}

// What line_of_names() has written; a name in quotes may have several lines.
std::vector<std::string> read_names(std::istream& in) {
  std::vector<std::string> names(1);
  bool in_quotes = false;
  for (char c = 0; in.get(c);) {
    if (c == '"') {
      const bool is_a_quote = in_quotes && in.peek() == '"';
      if (is_a_quote) names.back() += static_cast<char>(in.get());
      if (!is_a_quote) in_quotes = !in_quotes;
    } else if (in_quotes || (c != ',' && c != '\r' && c != '\n')) {
      names.back() += c;
    } else if (c == ',') {
      names.emplace_back();
    } else if (c == '\n') {
      break;
    }
  }
  return names;
}

}  // namespace

CsvLogger::CsvLogger(std::string path) : path_(std::move(path)) {
  if (path_.empty()) throw invalid_argument("CsvLogger: no path, expected that of a file");
}

void CsvLogger::on_train_begin(Training& training) {
  begun_ = saw_others_ = false;
  left_.reset();
  if (!training.model.strategy().is_chief()) return;
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::error_code refused;
  if (!directory.empty()) std::filesystem::create_directories(directory, refused);
  if (refused) throw cannot_write(path_, refused.message());
  write("", /*anew=*/false);
}

void CsvLogger::on_epoch_end(Training& training, const Logs& logs) {
  if (!training.model.strategy().is_chief()) return;
  look_for_others();
  if (!begun_) begin(training.epoch, logs);
  begun_ = true;
  widen(logs);
  std::string line = std::to_string(training.epoch);
  for (const std::string& name : columns_) {
    const auto found = logs.find(name);
    str_append(line, ",", found == logs.end() ? "" : in_all_digits(found->second));
  }
  write(line + "\n", /*anew=*/false);
  left_ = size_of(path_);
}

// Once in a training. A file that is gone or shorter was moved away or emptied: what a user may do.
void CsvLogger::look_for_others() {
  if (saw_others_ || !left_ || size_of(path_).value_or(0) <= *left_) return;
  saw_others_ = true;
  MUSTER_LOG(warning) << "CsvLogger: somebody else has written to \"" << path_
                      << "\" since the last epoch; expected a file for each job";
}

void CsvLogger::begin(int epoch, const Logs& logs) {
  columns_.clear();
  // A training that goes on after a backup adds to what it had written before.
  std::error_code none;
  if (epoch > 0 && std::filesystem::file_size(path_, none) > 0 && !none) return go_on(epoch);
  for (const auto& [name, value] : logs) columns_.push_back(name);
  write(line_of_names(columns_), /*anew=*/true);
}

// Takes its columns from the file, and the lines of this epoch and later ones out of it.
void CsvLogger::go_on(int epoch) {
  std::ifstream in(path_);
  columns_ = read_names(in);
  if (columns_[0] != kEpochColumn) {
    throw failed_precondition("CsvLogger: the first column of \"", path_, "\" is \"", columns_[0],
                              "\", expected \"epoch\", as CsvLogger writes it, to go on with epoch ", epoch + 1);
  }
  columns_.erase(columns_.begin());
  std::string kept = line_of_names(columns_), line;
  bool forgot = false;
  while (std::getline(in, line)) {
    if (in.eof()) {  // no end of the line: the job was killed, or the disk full
      MUSTER_LOG(warning) << "CsvLogger: the last line of \"" << path_ << "\" was cut off, and is left out: " << line;
      forgot = true;
      break;
    }
    int of_line = 0;
    const bool again = absl::SimpleAtoi(line.substr(0, line.find(',')), &of_line) && of_line >= epoch;
    forgot = forgot || again;
    if (!again) str_append(kept, line, "\n");
  }
  if (in.bad()) throw cannot_write(path_, str_cat("it cannot be read to go on with epoch ", epoch + 1));
  if (forgot) replace_by(kept);
}

// Gives what has no column yet one, which is empty in all lines before.
void CsvLogger::widen(const Logs& logs) {
  std::vector<std::string> others;
  for (const auto& [name, value] : logs) {
    if (std::ranges::find(columns_, name) == columns_.end()) others.push_back(name);
  }
  std::error_code none;
  if (others.empty() || !std::filesystem::is_regular_file(path_, none)) return;  // a pipe is not written anew
  std::ifstream in(path_);
  if (!in) throw cannot_write(path_, str_cat("it cannot be read for more columns: ", std::strerror(errno)));
  (void)read_names(in);
  std::vector<std::string> wider = columns_;
  wider.insert(wider.end(), others.begin(), others.end());
  std::string all = line_of_names(wider), line;
  while (std::getline(in, line)) {
    if (line.ends_with('\r')) line.pop_back();
    str_append(all, line, std::string(others.size(), ','), "\n");
  }
  if (in.bad()) throw cannot_write(path_, "it cannot be read for more columns");
  in.close();
  replace_by(all);
  columns_ = std::move(wider);
}

void CsvLogger::write(const std::string& text, bool anew) {
  std::ofstream out(path_, anew ? std::ios::trunc : std::ios::app);
  out << text << std::flush;
  if (!out) throw cannot_write(path_, std::strerror(errno));
}

void CsvLogger::replace_by(const std::string& text) {
  const std::string beside = path_ + ".tmp";  // whoever is killed now has not lost what it has
  std::ofstream out(beside, std::ios::trunc);
  out << text << std::flush;
  if (!out) throw cannot_write(path_, std::strerror(errno));
  std::error_code refused;
  std::filesystem::path target = std::filesystem::canonical(path_, refused);  // a link stays one
  if (refused) target = path_;
  std::filesystem::rename(beside, target, refused);
  if (refused) throw cannot_write(path_, refused.message());
}

}  // namespace muster
