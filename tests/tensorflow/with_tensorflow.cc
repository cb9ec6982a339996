// What Muster writes and reads, for tensorflow_test.py, which holds it against what TensorFlow and Keras make of the
// same:
//   with_tensorflow write FOLDER                        records of all kinds, as TensorFlow is to read them
//   with_tensorflow examples|sequences FILE COMPRESSION   what TensorFlow has written
//   with_tensorflow csv FILE
//   with_tensorflow images FOLDER exact|fast
//   with_tensorflow layers FOLDER                       of learn_*.txt and give_*.txt, one value a line
//   with_tensorflow events FOLDER                       of every kind, as TensorBoard is to show them
//   with_tensorflow scalars FOLDER                      of event files; steps and values
// Prints a line of JSON for each column: its name, its shape and its values, strings in hexadecimal digits.
#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>

#include "muster/data/dataset.h"
#include "muster/data/files/example_builder.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/sources/source.h"
#include "muster/fit/tensorboard/event_reader.h"
#include "muster/fit/tensorboard/summary_writer.h"
#include "muster/runtime/worker/local_worker.h"

namespace {

using namespace muster;
using Kind = ExampleFeature::Kind;
using Type = ExampleFeature::Type;

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    digits += two;
  }
  return digits;
}

void print(const std::string& name, const Column& column) {
  std::cout << R"({"column": ")" << name << R"(", "shape": [)";
  for (size_t i = 0; i < column.sizes().size(); ++i) std::cout << (i > 0 ? ", " : "") << column.sizes()[i];
  std::cout << R"(], "values": [)";
  if (column.holds_strings()) {
    for (size_t i = 0; i < column.strings().count(); ++i) {
      std::cout << (i > 0 ? ", " : "") << '"' << hexadecimal(column.strings()[i]) << '"';
    }
  } else {
    const at::Tensor flat = column.tensor().contiguous().view({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) {
      std::cout << (i > 0 ? ", " : "");
      if (!flat.is_floating_point()) {
        std::cout << flat[i].item<int64_t>();
        continue;
      }
      char text[40];
      const double value = flat[i].item<double>();
      std::snprintf(text, sizeof text, "%.9g", value);
      std::cout << (std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity") : text);
    }
  }
  std::cout << "]}\n";
}

// The first element, with its strings, which no program would take.
void print_first(const Dataset& dataset) {
  const std::atomic<bool> closed{false};
  const std::optional<Columns> element = open(*dataset.node(), {.runner = local_worker(), .closed = closed})->next();
  if (!element) throw out_of_range("there is no element");
  for (size_t i = 0; i < element->size(); ++i) print(dataset.column_names().at(i), element->at(i));
}

Compression compression_of(const std::string& name) {
  return name == "GZIP" ? Compression::kGzip : name == "ZLIB" ? Compression::kZlib : Compression::kNone;
}

void write(const std::string& folder) {
  const float infinity = std::numeric_limits<float>::infinity();
  const int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (const char* compression : {"NONE", "GZIP", "ZLIB"}) {
    TfRecordWriter out(folder + "/" + compression + ".tfrecord", compression_of(compression));
    for (int i = 0; i < 1'000; ++i) {
      ExampleBuilder example;
      example.floats("floats", {static_cast<float>(i) / 3, infinity, -0.0F, 1e-40F})
          .int64s("int64s", {i, least, most, -1})
          .strings("strings", {"", "größe", std::string_view("\0\xff", 2)})
          .bytes("bytes", std::string(static_cast<size_t>(i) * 3, 'x'))
          .floats("no floats", {})
          .int64s("no int64s", {})
          .strings("no strings", {});
      if (i % 2 == 0) example.int64s("even only", {i});
      out.write(example.serialize());
    }
    out.close();
  }
  TfRecordWriter out(folder + "/sequences.tfrecord");
  for (int i = 0; i < 100; ++i) {
    SequenceExampleBuilder sequence(ExampleBuilder().int64s("user", {i}).strings("name", {"n"}));
    for (int step = 0; step < i % 5; ++step) {
      sequence.floats("at", {static_cast<float>(step), static_cast<float>(i)})
          .int64s("item", {step})
          .bytes("word", "w");
    }
    out.write(sequence.list("at").list("item").list("word").list("nothing").serialize());
  }
  out.close();
}

void examples(const std::string& file, const std::string& compression) {
  print_first(
      Dataset::tfrecords({file}, {.compression = compression_of(compression)})
          .batch(1'000)
          .parse_examples(
              {{.name = "f", .kind = Kind::kFixed, .type = Type::kFloat, .shape = {2, 2}},
               {.name = "i", .kind = Kind::kFixed, .type = Type::kInt64},
               {.name = "s", .kind = Kind::kFixed, .type = Type::kString, .shape = {2}},
               {.name = "maybe", .kind = Kind::kFixed, .type = Type::kInt64, .otherwise = std::vector<int64_t>{-7}},
               {.name = "some f", .kind = Kind::kPadded, .type = Type::kFloat},
               {.name = "some i", .kind = Kind::kPadded, .type = Type::kInt64},
               {.name = "some s", .kind = Kind::kPadded, .type = Type::kString},
               {.name = "ids", .kind = Kind::kSparse, .type = Type::kInt64, .weights = "weights"}}));
}

void sequences(const std::string& file, const std::string& compression) {
  auto list = [](const std::string& name, Type type, std::vector<int64_t> shape = {}) {
    return ExampleFeature{
        .name = name, .kind = Kind::kPadded, .type = type, .shape = std::move(shape), .sequence = true};
  };
  print_first(Dataset::tfrecords({file}, {.compression = compression_of(compression)})
                  .batch(1'000)
                  .parse_examples({{.name = "user", .kind = Kind::kFixed, .type = Type::kInt64},
                                   list("at", Type::kFloat, {2}),
                                   list("item", Type::kInt64),
                                   list("word", Type::kString)}));
}

void images(const std::string& folder, bool fast) {
  const std::unique_ptr<ElementSource> source =
      Dataset::image_folder(folder).decode_images("image", {.decode = {.fast_transform = fast}}).open(local_worker());
  for (int number = 0; const std::optional<Element> element = source->next(); ++number) {
    print(str_cat("image", number), element->at(0));
    print(str_cat("label", number), element->at(1));
  }
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw not_found("file \"", path, "\"");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Column strings_of(const std::string& path) {
  Strings strings;
  const std::vector<std::string> lines = lines_of(path);
  for (const std::string& line : lines) strings.append(line);
  strings.shape({static_cast<int64_t>(lines.size())});
  return strings;
}

Column numbers_in(const std::string& path, at::ScalarType type, bool as_rows) {
  std::vector<double> numbers;
  for (const std::string& line : lines_of(path)) numbers.push_back(std::stod(line));
  at::Tensor tensor = at::tensor(numbers, at::kDouble).to(type);
  return as_rows ? tensor.unsqueeze(1) : tensor;
}

void layers(const std::string& folder) {
  auto strings = [&](const std::string& name) { return strings_of(folder + "/" + name + "_strings.txt"); };
  auto texts = [&](const std::string& name) { return strings_of(folder + "/" + name + "_texts.txt"); };
  auto ints = [&](const std::string& name, bool rows = false) {
    return numbers_in(folder + "/" + name + "_ints.txt", at::kLong, rows);
  };
  auto floats = [&](const std::string& name, bool rows = false) {
    return numbers_in(folder + "/" + name + "_floats.txt", at::kFloat, rows);
  };
  auto learned = [](std::unique_ptr<Adapter> adapter, const Column& from) {
    adapter->see(from);
    return adapter->finish();
  };
  print("string_lookup", (*learned(string_lookup_adapter(), strings("learn")))(strings("give")));
  print("string_lookup of a vocabulary", (*string_lookup({.vocabulary = {"oslo", "turin"}}))(strings("give")));
  print("string_lookup one_hot",
        (*string_lookup({.vocabulary = {"oslo", "turin"}, .output_mode = OutputMode::kOneHot}))(strings("give")));
  print("integer_lookup", (*learned(integer_lookup_adapter(), ints("learn")))(ints("give")));
  print("hashing of strings", (*hashing({.bins = 10}))(strings("give")));
  print("hashing of ints", (*hashing({.bins = 10}))(ints("give")));
  print("hashing with salt", (*hashing({.bins = 10, .salt = std::array<uint64_t, 2>{133, 133}}))(strings("give")));
  print("hashing with mask", (*hashing({.bins = 10, .mask_value = "oslo"}))(strings("give")));
  print("discretization", (*discretization({.bin_boundaries = {-1, 0, 0.5F, 10}}))(floats("give")));
  print("discretization learned", (*learned(discretization_adapter({.num_bins = 4}), floats("learn")))(floats("give")));
  print("normalization", (*learned(normalization_adapter(), floats("learn", true)))(floats("give", true)));
  print("category_encoding", (*category_encoding({.num_tokens = 5}))(ints("codes", true)));
  print("category_encoding one_hot",
        (*category_encoding({.num_tokens = 5, .output_mode = OutputMode::kOneHot}))(ints("codes")));
  print("category_encoding count",
        (*category_encoding({.num_tokens = 5, .output_mode = OutputMode::kCount}))(ints("codes", true)));
  print("text_vectorization", (*learned(text_vectorization_adapter(), texts("learn")))(texts("give")));
}

// Of numbers that tensorflow_test.py makes, too.
void events(const std::string& folder) {
  SummaryWriter train(folder + "/train");
  for (int step = 0; step < 3; ++step) train.scalars({{"epoch_loss", 1.0 / (step + 1)}, {"epoch_auc", 0.5}}, step);
  const at::Tensor numbers = at::arange(1'000, at::kDouble);
  train.histogram("spread", (numbers * 0.37).sin(), 4);
  train.histogram("one value", at::full({7}, 0.25), 4);
  train.histogram("nothing", at::empty({0}), 4);
  for (const int64_t channels : {1, 2, 3, 4}) {
    const at::Tensor bytes = at::arange(2 * 5 * 6 * channels).mul(37).remainder(256).to(at::kByte);
    train.image(str_cat("bytes", channels), bytes.reshape({2, 5, 6, channels}), 1);
  }
  train.image("floats", at::linspace(-0.5, 1.5, 24).reshape({4, 6, 1}), 2);
  train.text("notes", "# Größe\n*markdown*", 3);
  const Variable w(at::ones({2, 3}), {.name = "w"});
  auto step = function([&](const at::Tensor& x) { return x.mm(w).relu().topk(2); }, {.name = "step"});
  train.graph(step, at::ones({4, 2}));
  train.flush();

  SummaryWriter(folder + "/tuning")
      .experiment({{"rate", {0.1, 0.2}}, {"rule", {"sgd", "adam"}}, {"augment", {true, false}}},
                  {{.tag = "accuracy"}, {.tag = "epoch_loss", .group = "validation"}});
  SummaryWriter(folder + "/tuning/first")
      .hparams({{"rate", 0.1}, {"rule", "sgd"}, {"augment", true}}, {{"accuracy", 0.5}});
  SummaryWriter second(folder + "/tuning/second");
  second.begin_session({{"rate", 0.2}, {"rule", "adam"}, {"augment", false}});
  SummaryWriter(folder + "/tuning/second/validation").scalar("epoch_loss", 0.25, 9);
  second.end_session(/*success=*/false);
}

void scalars(const std::string& folder) {
  for (const ScalarCurve& curve : scalars_below(folder).curves) {
    std::vector<double> steps, values;
    for (const ScalarEvent& point : curve.points) {
      steps.push_back(static_cast<double>(point.step));
      values.push_back(point.value);
    }
    print(str_cat(curve.run, "/", curve.tag),
          at::stack({at::tensor(steps, at::kDouble), at::tensor(values, at::kDouble)}));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string what = words.empty() ? "" : words[0];
  try {
    if (what == "write" && words.size() == 2) {
      write(words[1]);
    } else if (what == "examples" && words.size() == 3) {
      examples(words[1], words[2]);
    } else if (what == "sequences" && words.size() == 3) {
      sequences(words[1], words[2]);
    } else if (what == "csv" && words.size() == 2) {
      print_first(Dataset::csv({words[1]}).batch(1'000));
    } else if (what == "images" && words.size() == 3) {
      images(words[1], words[2] == "fast");
    } else if (what == "layers" && words.size() == 2) {
      layers(words[1]);
    } else if (what == "events" && words.size() == 2) {
      events(words[1]);
    } else if (what == "scalars" && words.size() == 2) {
      scalars(words[1]);
    } else {
      std::cerr << "with_tensorflow: see tests/tensorflow/with_tensorflow.cc\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << "with_tensorflow: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
