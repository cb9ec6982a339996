// What Muster reads of Parquet files, for parquet_test.py, which holds it against what pyarrow reads of the same:
//   with_parquet rows BATCH FILE…   rows, or batches of so many of them (0: rows)
//   with_parquet speed FILE         rows a second, shuffled and not, of FILE.parquet and of FILE.csv
// Prints a line of JSON for each element: by column its type, its shape and its values, strings in hexadecimal digits.
#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>

#include "muster/data/dataset.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/local_worker.h"

namespace {

using namespace muster;

std::string text_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string text_of(std::string_view bytes) {
  std::string digits = "\"";
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    digits += two;
  }
  return digits + '"';
}

std::string values_of(const Column& column) {
  std::string values;
  auto add = [&](const std::string& value) { values += (values.empty() ? "" : ", ") + value; };
  if (column.holds_strings()) {
    for (size_t i = 0; i < column.strings().count(); ++i) add(text_of(column.strings()[i]));
    return values;
  }
  const at::Tensor flat = column.tensor().contiguous().view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) {
    add(flat.is_floating_point() ? text_of(flat[i].item<double>()) : std::to_string(flat[i].item<int64_t>()));
  }
  return values;
}

// With its strings, which no program would take.
template <class Use>
void for_each_element(const Dataset& dataset, const Use& use) {
  const std::atomic<bool> closed{false};
  const std::unique_ptr<Source> source = open(*dataset.node(), {.runner = local_worker(), .closed = closed});
  while (const std::optional<Columns> element = source->next()) use(*element);
}

void print_rows(const Dataset& dataset) {
  const std::vector<std::string> names = dataset.column_names();
  for_each_element(dataset, [&](const Columns& element) {
    std::string line;
    for (size_t i = 0; i < element.size(); ++i) {
      const std::string type = element[i].to_string();
      str_append(line, line.empty() ? "{" : ", ", "\"", names.at(i), R"(": {"type": ")", type.substr(0, type.find('[')),
                 R"(", "shape": )", type.substr(type.find('[')), R"(, "values": [)", values_of(element[i]), "]}");
    }
    std::cout << line << "}\n";
  });
}

void print_speed(const char* what, const Dataset& dataset) {
  for (int i = 0; i < 3; ++i) {  // the first fills the cache of the disk
    int64_t rows = 0;
    const std::clock_t begin = std::clock();  // of this process, for the machine may have others
    for_each_element(dataset, [&](const Columns& batch) { rows += batch[0].sizes()[0]; });
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    if (i > 0) std::cout << what << ": " << static_cast<int64_t>(static_cast<double>(rows) / seconds) << " rows/s\n";
  }
}

void measure(const std::string& file) {
  const Dataset parquet = Dataset::parquet({file + ".parquet"}), csv = Dataset::csv({file + ".csv"});
  print_speed("parquet, in order", parquet.batch(512));
  print_speed("csv, in order", csv.batch(512));
  print_speed("parquet, shuffled", parquet.shuffle(10'000).batch(512));
  print_speed("csv, shuffled", csv.shuffle(10'000).batch(512));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 2) throw invalid_argument("with_parquet rows BATCH FILE… | speed FILE");
    if (words[0] == "speed") {
      measure(words[1]);
      return 0;
    }
    const Dataset rows = Dataset::parquet(std::vector<std::string>(words.begin() + 2, words.end()));
    const int64_t batch = std::stoll(words[1]);
    print_rows(batch == 0 ? rows : rows.batch(batch));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
