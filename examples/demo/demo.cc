// Trains a click model from CSV files with fit(): three workers, two parameter servers and an evaluator, each a process
// of this program. One worker is killed on the way and started again.
//   demo [the folder for data, checkpoints and logs]
#include <muster/muster.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <thread>

#include "examples/demo/click_log.h"
#include "examples/demo/processes.h"
#include "muster/fit/tensorboard/event_reader.h"
#include "tools/chart.h"

namespace {

constexpr int kFiles = 12, kViewsPerFile = 40'000, kTestViews = 20'000, kEpochs = 4;
constexpr int64_t kDim = 8, kBatch = 512, kUserBins = 1 << 16;
constexpr int64_t kStepsOfAnEpoch = kFiles * kViewsPerFile / kBatch;  // or more: not all batches are full
constexpr std::chrono::seconds kPatience{60};

struct ClickModelImpl : torch::nn::Module {
  ClickModelImpl() {
    auto table = [&](const char* name, int64_t rows) {
      tables.emplace_back(name,
                          register_module(name, muster::nn::Embedding({.rows = rows, .dim = kDim, .name = name})));
    };
    table("user", kUserBins);  // hashed
    table("item", 1001);       // looked up; 0 stands for those that are not in the vocabulary
    table("shop", 201);
    table("hour", 24);
    top = register_module(
        "top", torch::nn::Sequential(torch::nn::Linear(4 * kDim, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1)));
  }
  torch::Tensor forward(const muster::Features& view) {
    std::vector<torch::Tensor> rows;
    for (auto& [name, table] : tables) rows.push_back(table->forward(view[name]));
    return top->forward(torch::cat(rows, 1)).squeeze(1);
  }

  std::vector<std::pair<std::string, muster::nn::Embedding>> tables;
  torch::nn::Sequential top{nullptr};
};
TORCH_MODULE(ClickModel);

muster::Model compiled(const muster::Strategy& strategy) {
  torch::manual_seed(7);
  return muster::compile(strategy.make<ClickModel>(),
                         {.optimizer = muster::Adagrad({.learning_rate = 0.2, .initial_accumulator = 0.1}),
                          .loss = muster::binary_cross_entropy_with_logits,
                          .metrics = {muster::Auc()}});
}

// Lines of CSV become batches: words are hashed, or are looked up in vocabularies that are learned from a file.
class Views {
 public:
  explicit Views(std::string folder) : folder_(std::move(folder)) {
    const muster::Dataset some = muster::Dataset::csv({folder_ + "/data/train-00.csv"});
    for (const std::string name : {"item", "shop"}) {
      auto adapter = muster::string_lookup_adapter();
      some.adapt(*adapter, name);
      vocabularies_.emplace_back(name, adapter->finish());
    }
  }
  muster::Dataset of(const std::string& files) const {
    muster::Dataset views = muster::Dataset::csv({folder_ + "/data/" + files});
    views = views.preprocess("user", muster::hashing({.bins = kUserBins}));
    for (const auto& [name, vocabulary] : vocabularies_) views = views.preprocess(name, vocabulary);
    return views.label("click");
  }
  muster::Dataset training() const { return of("train-*.csv").shuffle(10'000).batch(kBatch).prefetch(2); }
  muster::Dataset test() const { return of("test.csv").batch(kBatch); }

 private:
  const std::string folder_;
  std::vector<std::pair<std::string, std::shared_ptr<const muster::Preprocessing>>> vocabularies_;
};

// A worker or a parameter server: it needs nothing of the model.
int serve(const std::string& job, int index, const std::string& cluster, const std::string& folder) {
  muster::ServerOptions options{.cluster = muster::ClusterSpec::from_json(cluster), .task = {job, index}};
  options.worker.data = {folder};
  options.worker.storage = {folder};
  return muster::Server(options).join();
}

// Looks at every checkpoint that the training leaves, without anybody waiting for it.
int evaluate(const std::string& folder) {
  muster::SidecarEvaluator evaluator(compiled({}), Views(folder).test(),
                                     {.directory = folder + "/checkpoints",
                                      .logs = folder + "/logs",
                                      .patience = kPatience,
                                      .look_every = std::chrono::milliseconds(50),
                                      // It takes the newest, so there may be fewer evaluations than epochs.
                                      .on_evaluation = [](int64_t iterations, const muster::Logs&) {
                                        return iterations < kEpochs * kStepsOfAnEpoch;
                                      }});
  return evaluator.run() > 0 ? 0 : 1;
}

class Cluster {
 public:
  explicit Cluster(std::string folder) : folder_(std::move(folder)), addresses_(demo::free_addresses(5)) {
    for (int i = 0; i < 3; ++i) tasks_.push_back(started("worker", i));
    for (int i = 0; i < 2; ++i) tasks_.push_back(started("ps", i));
  }
  muster::SimpleClusterResolver resolver() const {
    return muster::SimpleClusterResolver(muster::ClusterSpec::from_json(json()));
  }
  void kill_worker(int index) { tasks_[static_cast<size_t>(index)].kill(); }
  void start_worker(int index) { tasks_[static_cast<size_t>(index)] = started("worker", index); }

 private:
  std::string json() const {
    auto quoted = [&](size_t first, size_t count) {
      std::string list;
      for (size_t i = first; i < first + count; ++i) list += (i > first ? ",\"" : "\"") + addresses_[i] + "\"";
      return list;
    };
    return "{\"worker\":[" + quoted(0, 3) + "],\"ps\":[" + quoted(3, 2) + "]}";
  }
  demo::Process started(const std::string& job, int index) const {
    const std::string number = std::to_string(index);
    return {{"--serve", job, number, json(), folder_}, folder_ + "/output/" + job + "-" + number + ".txt"};
  }

  const std::string folder_;
  const std::vector<std::string> addresses_;
  std::vector<demo::Process> tasks_;
};

// Kills a worker in the middle of the second epoch, and starts it again before the third.
class Accident {
 public:
  explicit Accident(Cluster& cluster) : cluster_(cluster) {}
  Accident(const Accident&) = delete;
  Accident& operator=(const Accident&) = delete;

  bool has_happened_in_the_second_epoch() const { return happened_ && !too_late_; }
  muster::LambdaCallback callback() {
    return muster::LambdaCallback(
        {.on_epoch_begin = [this](muster::Training& training) { begin_of(training.epoch + 1); },
         .on_epoch_end =
             [this](muster::Training& training, const muster::Logs&) {
               if (training.epoch + 1 == 2) too_late_ = !happened_;
             }});
  }

 private:
  void begin_of(int epoch) {
    if (epoch == 2) {
      std::cout << "Worker 1 is killed in this epoch: a warning says that it is missed." << std::endl;
      killer_ = std::jthread([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        cluster_.kill_worker(1);
        happened_ = true;
      });
    }
    if (epoch == 3) {
      killer_.join();
      cluster_.start_worker(1);
      std::cout << "Worker 1 is started again." << std::endl;
    }
  }

  Cluster& cluster_;
  std::atomic<bool> happened_ = false, too_late_ = false;
  std::jthread killer_;
};

void draw(const std::string& logs, const std::string& file) {
  const muster::ScalarCurves curves = muster::scalars_below(logs);
  std::ofstream(file) << muster::tools::draw_as_svg(muster::tools::charts_of(curves.curves));
}

int train(const std::string& folder) {
  const bool ours = std::filesystem::exists(folder + "/data/train-00.csv");
  if (std::filesystem::exists(folder) && !ours && !std::filesystem::is_empty(folder)) {
    throw std::runtime_error("\"" + folder + "\" is not empty, and nothing that the demo has left");
  }
  std::filesystem::remove_all(folder);
  for (const char* below : {"data", "output"}) std::filesystem::create_directories(folder + "/" + below);
  Cluster cluster(folder);  // is up when the data is written
  demo::World world;
  double clicks = 0;
  for (int i = 0; i < kFiles; ++i) {
    const std::string number = (i < 10 ? "0" : "") + std::to_string(i);
    for (const demo::View& view : world.write(folder + "/data/train-" + number + ".csv", kViewsPerFile))
      clicks += view.clicked;
  }
  const double best = demo::best_auc(world.write(folder + "/data/test.csv", kTestViews));
  std::cout << std::fixed << kFiles << " CSV files with " << kFiles * kViewsPerFile << " views, of which "
            << std::setprecision(1) << 100 * clicks / (kFiles * kViewsPerFile)
            << " % were clicked. Who knows the truth has an AUC of " << std::setprecision(4) << best << ".\n"
            << "Three workers, two parameter servers and an evaluator, each a process; tables of more than 4 KiB are "
               "in two parts.\n"
            << std::endl;

  demo::Process evaluator({"--evaluate", folder}, folder + "/output/evaluator.txt");
  Accident accident(cluster);
  const muster::ParameterServerStrategy strategy(
      cluster.resolver(), {.partitioner = muster::MinSizePartitioner{.min_shard_bytes = 4 << 10, .max_shards = 2}});
  muster::Model model = compiled(strategy);
  const Views views(folder);
  int64_t steps = 0;
  model.fit(
      views.training(),
      {.epochs = kEpochs,
       .callbacks = {muster::ModelCheckpoint({.directory = folder + "/checkpoints", .keep = kEpochs}),
                     muster::TensorBoard({.directory = folder + "/logs", .write_graph = false}), accident.callback(),
                     muster::LambdaCallback({.on_train_end = [&](muster::Training& training, const muster::Logs&) {
                       steps = training.steps;
                     }})}});
  const double reached = model.evaluate(views.test()).at("auc");
  const int64_t counted = model.optimizer().iterations();
  const bool evaluated = evaluator.wait() == 0;
  draw(folder + "/logs", folder + "/curves.svg");

  const bool missed = accident.has_happened_in_the_second_epoch();
  std::cout << "\n"
            << (missed ? "Worker 1 was killed in the second epoch and started again before the third. "
                       : "WORKER 1 WAS KILLED TOO LATE, after the second epoch. ")
            << steps << " steps were taken, and " << counted
            << " counted by the parameter servers: " << (counted >= steps ? "none was lost.\n" : "SOME WERE LOST.\n")
            << "AUC " << std::setprecision(4) << reached << " on views that it has never seen; the best possible is "
            << best << ".\n"
            << (evaluated ? "" : "THE EVALUATOR HAS FAILED: see output/evaluator.txt.\n") << "In " << folder << ":\n"
            << "  checkpoints/   one after each epoch\n"
            << "  logs/          tensorboard --logdir, or muster plot\n"
            << "  curves.svg     what they show\n"
            << "  output/        what the other processes have said\n";
  return missed && counted >= steps && evaluated && reached > best - 0.01 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    torch::set_num_threads(1);  // several processes share this machine
    if (words.size() == 5 && words[0] == "--serve") return serve(words[1], std::stoi(words[2]), words[3], words[4]);
    if (words.size() == 2 && words[0] == "--evaluate") return evaluate(words[1]);
    if (words.size() > 1 || (words.size() == 1 && words[0].starts_with("-"))) {
      std::cerr << "demo: expected no arguments, or one folder for what it leaves\n";
      return 2;
    }
    const auto usual = std::filesystem::temp_directory_path() / ("muster-demo-" + std::to_string(::getuid()));
    return train(words.empty() ? usual.string() : std::filesystem::absolute(words[0]).string());
  } catch (const std::exception& error) {
    std::cerr << "demo: " << error.what() << "\n";
    return 1;
  }
}
