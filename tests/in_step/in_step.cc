// A program that trains in step with others, for in_step_test.py:
//   in_step [--steps N] [--optimizer momentum|adam] [--devices NAME,…] [--weights FILE] [--checkpoints DIRECTORY]
//           [--start-timeout MS] [--differs-at STEP] [--table ROWS]
//           [--save-every STEPS] [--preemption yes] [--bytes-per-pack N] [--norm synchronized|of-replicas]
//           [--layers-on NAME,NAME] [--differs-in purpose|type|shape|reduction|order] [--waits-for FILE]
//           [--slots yes] [--communication auto|ring] [--timeout MS] [--stays-away-from
//           dense|dense-many|rows|rows-many]
//           [--objects yes] [--save-async yes] [--again yes]
//   in_step --rounds N [--communication auto|ring]
//   in_step --variables-of MB
//   in_step --fit EPOCHS --checkpoints DIRECTORY [--save-async yes]
//   in_step --counts yes --checkpoints DIRECTORY
//   in_step --export FILE [--accumulate N]
//   in_step --linear-models yes     prints what the models of fit/test_linear_models.h have learned
//   in_step --metrics yes           prints the numbers of those of fit/test_metric_tasks.h, and where fit() has ended
// Alone without TF_CONFIG. Prints "step I" after each step, and writes the bytes of its weights at the end.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "muster/fit/test_linear_models.h"
#include "muster/fit/test_metric_tasks.h"
#include "muster/muster.h"
#include "muster/train/sync_batch_norm.h"

namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

bool fails(const std::function<void()>& what) {
  try {
    what();
  } catch (const muster::Error&) {
    return true;
  }
  return false;
}

// What replicas give each other inside of a step, and the gradients of it: replica i gives i + 1 times the same rows.
void exchange(const muster::Strategy& strategy) {
  using muster::ReduceOp;
  const int size = strategy.num_replicas_in_sync();
  const torch::Tensor rows = torch::arange(4.0F * static_cast<float>(size)).view({-1, 2});
  auto step = muster::function([](const torch::Tensor& x) {
    const int64_t own = muster::replica_id() + 1;
    std::vector<torch::Tensor> given;
    for (int i = 0; i < 5; ++i) given.push_back((x * own).detach().requires_grad_());
    const std::vector<torch::Tensor> got{muster::all_gather(given[0]), muster::reduce_scatter(ReduceOp::kSum, given[1]),
                                         muster::all_to_all(given[2]), muster::broadcast(given[3], 1),
                                         muster::reduce_to(ReduceOp::kMean, given[4], 1)};
    torch::Tensor loss = torch::zeros({});
    for (const torch::Tensor& each : got) loss = loss + (each * own).sum();
    loss.backward();
    std::vector<torch::Tensor> all = got;
    for (const torch::Tensor& each : given) all.push_back(each.grad());
    all.push_back(muster::all_reduce(ReduceOp::kMax, given[0].detach()));
    all.push_back(muster::all_reduce(ReduceOp::kMin, x.eq(1).logical_or(torch::tensor(muster::replica_id() == 0))));
    all.push_back(torch::full({}, muster::replica_id()));
    return all;
  });
  const auto sum = static_cast<float>(size * (size + 1)) / 2;  // 1 + 2 + …
  std::vector<torch::Tensor> of_all, shares;
  for (int i = 0; i < size; ++i) {
    of_all.push_back(rows * (i + 1));
    shares.push_back(torch::full({2, 2}, i + 1.0F));
  }
  for (const std::vector<torch::Tensor>& all : strategy.run(step, rows).values) {
    const auto id = all[12].item<int64_t>();
    const torch::Tensor share = rows.narrow(0, 2 * id, 2), by_share = torch::cat(shares);
    std::vector<torch::Tensor> dealt;
    for (int i = 0; i < size; ++i) dealt.push_back(share * (i + 1));
    const auto is = [&](size_t number, const torch::Tensor& expected) {
      expect(all[number].allclose(expected), muster::str_cat("value ", number, " of replica ", id));
    };
    is(0, torch::cat(of_all));
    is(1, share * sum);
    is(2, torch::cat(dealt));
    is(3, rows * 2);
    is(4, id == 1 ? rows * sum / size : torch::zeros_like(rows));
    is(5, torch::full_like(rows, sum));
    is(6, by_share);
    is(7, by_share);
    is(8, id == 1 ? torch::full_like(rows, sum) : torch::zeros_like(rows));
    is(9, torch::full_like(rows, 2.0F / static_cast<float>(size)));
    is(10, rows * size);
    expect(all[11].equal(rows.eq(1)), "whether all replicas have it");
  }
  auto number = muster::function([] { return torch::full({}, muster::replica_id() + 1.0F); });
  const muster::PerReplica<torch::Tensor> numbers = strategy.run(number);
  expect(strategy.reduce(ReduceOp::kSum, numbers).item<float>() == sum, "the sum of the numbers of replicas");
  expect(strategy.reduce(ReduceOp::kMean, numbers).item<float>() == sum / static_cast<float>(size), "their mean");
}

// One strategy after the other in the same processes: what they reduce, gather and begin with.
int make_anew(int rounds, const muster::CommunicationOptions& communication) {
  const auto resolver = muster::TfConfigClusterResolver();
  exchange(muster::MultiWorkerMirroredStrategy(
      resolver, {.devices = {"/device:CPU:0", "/device:CPU:1"}, .communication = communication}));
  for (int round = 1; round <= rounds; ++round) {
    const muster::MultiWorkerMirroredStrategy strategy(resolver, {.communication = communication});
    const int size = strategy.num_replicas_in_sync(), rank = strategy.worker();
    const std::vector<int64_t> ones(static_cast<size_t>(round), 1);
    const auto variable = strategy.make<muster::Variable>(rank == 0 ? torch::ones(ones) : torch::zeros(ones));
    expect(variable.value().equal(torch::ones(ones)), "a variable begins with the value of the first worker");

    auto same = muster::function([](torch::Tensor x) { return x; });
    auto mean = [&](const torch::Tensor& x) { return strategy.reduce(muster::ReduceOp::kMean, strategy.run(same, x)); };
    auto sum = [&](const torch::Tensor& x) { return strategy.reduce(muster::ReduceOp::kSum, strategy.run(same, x)); };
    expect(mean(torch::tensor(static_cast<double>(rank))).item<double>() == (size - 1) / 2.0, "the mean of the ranks");
    expect(sum(torch::tensor(rank + 1)).item<int64_t>() == size * (size + 1) / 2, "the sum of 1, 2, …");
    const torch::Tensor pair = torch::tensor({2 * rank + 1, 2 * rank + 2});
    expect(sum(pair).equal(torch::tensor({size * size, size * (size + 1)})), "the sum of [1, 2], [3, 4], …");
    expect(sum(torch::ones({})).item<float>() == static_cast<float>(size), "the sum of ones");
    expect(mean(torch::ones({})).item<float>() == 1, "the mean of ones");
    expect(mean(torch::tensor(rank + 1.0)).item<double>() == (size + 1) / 2.0, "the mean of 1, 2, …");
    expect(mean(pair.to(torch::kDouble)).equal(torch::tensor({size, size + 1}).to(torch::kDouble)),
           "the mean of [1, 2], [3, 4], …");
    expect(fails([&] { sum(torch::tensor({true})); }), "a sum of bool is refused, and the group goes on");
    const muster::Sgd sgd({variable}, {.learning_rate = 1});
    auto alone = muster::function([&](torch::Tensor x) { sgd.minimize((variable.value() * x).sum()); });
    expect(fails([&] { alone(torch::ones({})); }), "one worker does not take a step alone");
    expect(variable.value().equal(torch::ones(ones)), "the variable is what it was");
    expect(strategy.reduce(muster::ReduceOp::kMin, strategy.run(same, pair)).equal(torch::tensor({1, 2})), "the least");
    expect(strategy.reduce(muster::ReduceOp::kMax, strategy.run(same, torch::tensor(rank == 1))).item<bool>(), "any");
    expect(!strategy.reduce(muster::ReduceOp::kMin, strategy.run(same, torch::tensor(rank == 1))).item<bool>(), "all");
    strategy.barrier("the next round");
    const torch::Tensor cube = torch::tensor({{{1, 2}, {1, 2}}});
    for (int64_t axis = 0; axis < 3; ++axis) {
      expect(strategy.gather(strategy.run(same, cube), axis)
                 .equal(torch::cat(std::vector<torch::Tensor>(static_cast<size_t>(size), cube), axis)),
             "what is gathered along an axis");
    }
    exchange(strategy);
  }
  std::cout << "all " << rounds << " rounds" << std::endl;
  return 0;
}

// A net in two halves, each on a device of its own if there are two names.
class Halves {
 public:
  Halves(const muster::Strategy& strategy, const torch::nn::Sequential& front, const torch::nn::Sequential& back,
         std::vector<std::string> devices)
      : devices_(std::move(devices)), halves_{made(strategy, 0, front), made(strategy, 1, back)} {}

  torch::Tensor forward(torch::Tensor x) const {
    for (size_t i = 0; i < halves_.size(); ++i) {
      std::optional<muster::DeviceScope> there;
      if (!devices_.empty()) there.emplace(devices_.at(i));
      torch::nn::Sequential half = halves_[i];
      x = half->forward(x);
    }
    return x;
  }
  std::vector<muster::Variable> trainable() const {
    std::vector<muster::Variable> all;
    for (torch::nn::Sequential half : halves_) {
      for (const muster::Variable& variable : muster::adopted(half).trainable()) all.push_back(variable);
    }
    return all;
  }
  const torch::nn::Sequential& half(size_t number) const { return halves_.at(number); }
  // As they are now.
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> all;
    for (torch::nn::Sequential half : halves_) {
      muster::adopted(half).write_back();
      for (const torch::Tensor& weight : half->parameters()) all.push_back(weight);
    }
    return all;
  }

 private:
  torch::nn::Sequential made(const muster::Strategy& strategy, size_t half, const torch::nn::Sequential& layers) const {
    std::optional<muster::DeviceScope> there;
    if (!devices_.empty()) there.emplace(devices_.at(half));
    auto made = strategy.make<torch::nn::Sequential>(layers);
    for (const muster::Variable& variable : muster::adopted(made).trainable()) {
      expect(devices_.empty() || variable.device().ends_with(devices_.at(half)),
             variable.name() + " is where it was made");
    }
    return made;
  }

  const std::vector<std::string> devices_;
  const std::vector<torch::nn::Sequential> halves_;
};

void expect_equal_copies(const std::vector<muster::Variable>& variables) {
  for (const muster::Variable& variable : variables) {
    for (const muster::Variable& copy : variable.copies()) {
      expect(copy.value().equal(variable.copies()[0].value()), "the copies of " + variable.name() + " are equal");
    }
  }
}

// Variables without end, each of which has the first worker's value: somebody ends one of the workers meanwhile.
int make_variables(const muster::Strategy& strategy, int64_t megabytes) {
  for (int made = 1;; ++made) {
    const auto variable = strategy.make<muster::Variable>(torch::ones({megabytes << 18}));
    std::cout << "variable " << made << std::endl;
  }
}

// What both do in a step, of which the second worker makes something else.
void differ(const muster::Strategy& strategy, bool second, const std::string& what) {
  using muster::ReduceOp;
  auto same = muster::function([](const torch::Tensor& value) { return value; });
  const auto reduce = [&](ReduceOp op, const torch::Tensor& value) {
    static_cast<void>(strategy.reduce(op, strategy.run(same, value)));
  };
  const torch::Tensor three = torch::ones({3});
  if (what == "order") {
    if (second) static_cast<void>(strategy.gather(strategy.run(same, three)));
    reduce(ReduceOp::kSum, three);
    static_cast<void>(strategy.gather(strategy.run(same, three)));
  } else if (what == "type") {
    reduce(ReduceOp::kSum, second ? three.to(torch::kDouble) : three);
  } else if (what == "shape") {
    reduce(ReduceOp::kSum, second ? torch::ones({5}) : three);
  } else if (what == "reduction") {
    reduce(second ? ReduceOp::kMax : ReduceOp::kSum, three);
  } else if (second) {
    reduce(ReduceOp::kSum, three);
  }
}

// One step of variables of which each replica has its own, and a checkpoint of what they are together; it goes on after
// the last one, if there is one.
int count_once(const muster::Strategy& strategy, int index, const std::string& directory) {
  const auto made = [&](const char* name, muster::Aggregation aggregation) {
    return strategy.make<muster::Variable>(
        torch::zeros({2}),
        muster::VariableOptions{
            .name = name, .aggregation = aggregation, .synchronization = muster::Synchronization::kOnRead});
  };
  auto sum = made("sum", muster::Aggregation::kSum), mean = made("mean", muster::Aggregation::kMean),
       first = made("first", muster::Aggregation::kOnlyFirstReplica);
  const auto replicas = static_cast<float>(strategy.num_replicas_in_sync());
  const auto expect_after = [&](int64_t steps) {
    const auto is = [&](const muster::Variable& variable, float expected) {
      expect(variable.value().equal(torch::full({2}, expected)),
             muster::str_cat(variable.name(), " after ", steps, " steps: ", variable.value()[0].item<float>()));
    };
    is(sum, static_cast<float>(steps) * replicas * (replicas + 1) / 2);
    is(mean, static_cast<float>(steps) * (replicas + 1) / 2);
    if (index == 0) is(first, static_cast<float>(steps));
  };
  muster::Checkpoints checkpoints(strategy, {.directory = directory});
  const int64_t done = checkpoints.restore().value_or(0);
  std::cout << "restored " << done << std::endl;
  expect(first.value().equal(torch::full({2}, static_cast<float>(done))), "all have what the first one had");
  for (const muster::Variable& copy : mean.copies()) expect(copy.value().equal(mean.value()), "all have the mean");
  expect_after(done);

  strategy.run(muster::function([&] {
    for (muster::Variable* each : {&sum, &mean, &first}) {
      each->assign_add(torch::full({2}, static_cast<float>(muster::replica_id() + 1)));
    }
  }));
  expect_after(done + 1);
  checkpoints.finish_restore();  // what is made from now on has no values there
  {
    const auto none = made("none", muster::Aggregation::kNone);
    expect(fails([&] { checkpoints.save(done + 1); }), "what is nothing together is not saved");
    // It is in nobody's way who saves something else.
    muster::Checkpoints(strategy, {.directory = directory + "-chosen", .objects = {{"sum", sum}}}).save(done + 1);
  }
  checkpoints.save(done + 1);
  return 0;
}

// Steps that sum up something else in each kind, to the second of which one worker does not come.
int stay_away(const muster::Strategy& strategy, bool second, const std::string& kind) {
  std::vector<muster::Variable> tables;
  for (int i = 0; i < (kind.ends_with("-many") ? 2 : 1); ++i) {
    tables.push_back(strategy.make<muster::Variable>(torch::ones({10, 2})));
  }
  const muster::Sgd sgd(tables, {.learning_rate = 0.1});
  auto step = muster::function([&](const torch::Tensor& ids) {
    torch::Tensor loss = torch::zeros({});
    for (const muster::Variable& table : tables) {
      loss = loss + (kind.starts_with("rows") ? muster::lookup(table, ids) : table.value()).sum();
    }
    sgd.minimize(loss);
  });
  strategy.run(step, torch::tensor({1, 2}));
  std::cout << "step 1" << std::endl;
  while (second) std::this_thread::sleep_for(std::chrono::hours(1));
  strategy.run(step, torch::tensor({1, 2}));
  return 0;
}

// fit() over three batches, of which the last may make no whole step, and the model that comes of it without its code.
int fit_and_export(const muster::Strategy& strategy, int index, std::map<std::string, std::string>& flags) {
  torch::manual_seed(static_cast<uint64_t>(index) + 1);
  auto net = strategy.make<torch::nn::Linear>(8, 1);
  muster::Model model = muster::compile(net, {.optimizer = muster::Sgd({.learning_rate = 0.05}),
                                              .loss = muster::mean_squared_error,
                                              .accumulate = std::stoll(flags["--accumulate"])});
  const torch::Tensor x = torch::arange(33 * 8).view({33, 8}).sin(), y = x.sum(1, true);  // a last batch of one row
  const std::string own = flags["--export"] + ".logs." + std::to_string(index);
  const muster::History history =
      model.fit(muster::Dataset::tensors({x, y}).batch(16),
                {.epochs = 2,
                 .callbacks = {muster::CsvLogger(own + "/log.csv"), muster::TensorBoard({.directory = own}),
                               muster::TensorBoard({.directory = flags["--export"] + ".board", .profile_step = 2})}});
  std::cout << "loss " << history["loss"].back() << std::endl;

  const std::string file = flags["--export"] + "." + std::to_string(index);
  muster::export_model(model, file, {x});
  const muster::LoadedModel loaded = muster::LoadedModel::load(file);
  expect(loaded(x).allclose(model.predict({x, y})), "an exported model gives what the trained one does");
  return 0;
}

// Has written something after every other epoch, where it writes.
struct WritesAtTheChief : muster::Callback {
  explicit WritesAtTheChief(bool at_chief) : is_chief(at_chief) {}
  void on_epoch_begin(muster::Training& training) override { writes = is_chief && training.epoch % 2 == 0; }
  std::shared_future<muster::Status> being_written() const override {
    std::promise<muster::Status> ended;
    ended.set_value(muster::Status());
    return writes ? ended.get_future().share() : std::shared_future<muster::Status>();
  }
  const bool is_chief;
  bool writes = false;
};

// fit() that goes on after its backup, if there is one, and ends when it is told to. While it trains it saves
// checkpoints, or the chief writes something else.
int fit_with_backup(const muster::Strategy& strategy, int epochs, const std::string& directory, bool saves_async) {
  auto net = strategy.make<torch::nn::Linear>(8, 1);
  muster::Model model =
      muster::compile(net, {.optimizer = muster::Sgd({.learning_rate = 0.05}), .loss = muster::mean_squared_error});
  const torch::Tensor x = torch::arange(48 * 8).view({48, 8}).sin(), y = x.sum(1, true);
  const muster::LambdaCallback tells({.on_epoch_end = [](muster::Training& training, const muster::Logs&) {
    std::cout << "epoch " << training.epoch + 1 << std::endl;
  }});
  muster::Callbacks callbacks{tells, muster::BackupAndRestore({.directory = directory, .preemption = true})};
  if (saves_async) {
    callbacks.add(muster::ModelCheckpoint({.directory = directory + "-beside", .while_training = true}));
  } else {
    callbacks.add(WritesAtTheChief(strategy.is_chief()));
  }
  const muster::History history = model.fit(muster::Dataset::tensors({x, y}).batch(16),
                                            {.epochs = epochs, .callbacks = std::move(callbacks), .verbose = 0});
  return history.preempted() ? muster::kPreempted : 0;
}

// All numbers of batches that the replicas cannot share evenly, the losses of a training with others, and the numbers
// of single steps; then a training that learns nothing, and ends.
int fit_with_metrics(const muster::Strategy& strategy) {
  for (const muster::testing_support::MetricTask& task : muster::testing_support::metric_tasks()) {
    for (const bool trains : {false, true}) {
      // In a step down a mean of examples each replica counts alike, however many it has.
      const muster::Dataset data = muster::Dataset::tensors(task.tensors).batch(trains ? 14 : 9);
      muster::Model model = muster::testing_support::model_of(task, strategy, trains ? 0.01 : 0);
      const muster::History history = model.fit(data, {.epochs = 2, .validation_data = data, .verbose = 0});
      for (const std::string& name : history.names()) {
        // Weights that are another way of rounding apart may be on two sides of a threshold.
        if (trains && !name.ends_with("loss")) continue;
        std::cout << "number " << task.name << (trains ? "_trained " : " ") << name << " " << std::setprecision(17)
                  << history[name].back() << std::endl;
      }
    }
    muster::Model model = muster::testing_support::model_of(task, strategy, /*learning_rate=*/0);
    for (const bool trains : {false, true}) {
      const muster::Logs logs = trains ? model.train_on_batch(task.tensors) : model.test_on_batch(task.tensors);
      for (const auto& [name, value] : logs) {
        std::cout << "number " << task.name << (trains ? " train_on_batch_" : " test_on_batch_") << name << " "
                  << std::setprecision(17) << value << std::endl;
      }
    }
  }
  const muster::testing_support::MetricTask task = muster::testing_support::metric_tasks().back();
  const muster::History history =
      muster::testing_support::model_of(task, strategy, /*learning_rate=*/0)
          .fit(muster::Dataset::tensors(task.tensors).batch(9),
               {.epochs = 50, .callbacks = {muster::EarlyStopping({.monitor = "loss", .patience = 2})}, .verbose = 0});
  std::cout << "number stopped epochs " << history.epochs().size() << std::endl;
  return 0;
}

int run(std::map<std::string, std::string>& flags) {
  const muster::CommunicationOptions communication{.bytes_per_pack = std::stoll(flags["--bytes-per-pack"]),
                                                   .timeout = std::chrono::milliseconds(std::stoi(flags["--timeout"])),
                                                   .implementation = flags["--communication"] == "ring"
                                                                         ? muster::CommunicationImplementation::kRing
                                                                         : muster::CommunicationImplementation::kAuto};
  if (const int rounds = std::stoi(flags["--rounds"]); rounds > 0) return make_anew(rounds, communication);

  const std::vector<std::string> devices = split(flags["--devices"]);
  const bool alone = std::getenv("TF_CONFIG") == nullptr;
  const muster::MultiWorkerOptions options{
      .devices = devices,
      .start_timeout = std::chrono::milliseconds(std::stoi(flags["--start-timeout"])),
      .communication = communication};
  const muster::Strategy strategy =
      alone ? muster::Strategy(muster::MirroredStrategy(devices))
            : muster::Strategy(muster::MultiWorkerMirroredStrategy(muster::TfConfigClusterResolver(), options));
  std::cout << strategy.num_replicas_in_sync() << " replicas" << std::endl;

  // What each begins with is its own; what counts is that of the first.
  const auto resolver = muster::TfConfigClusterResolver();
  const int index = alone ? 0 : resolver.task_index().value_or(0);
  if (const std::string& kind = flags["--stays-away-from"]; !kind.empty()) return stay_away(strategy, index == 1, kind);
  if (!flags["--linear-models"].empty()) {
    const double linear = muster::testing_support::linear_loss(strategy);
    std::cout << "linear " << linear << " wide_and_deep " << muster::testing_support::wide_and_deep_loss(strategy)
              << std::endl;
    return 0;
  }
  if (!flags["--metrics"].empty()) return fit_with_metrics(strategy);
  if (const int epochs = std::stoi(flags["--fit"]); epochs > 0) {
    return fit_with_backup(strategy, epochs, flags["--checkpoints"], flags["--save-async"] == "yes");
  }
  if (!flags["--counts"].empty()) return count_once(strategy, index, flags["--checkpoints"]);
  if (!flags["--export"].empty()) return fit_and_export(strategy, index, flags);
  if (const int64_t megabytes = std::stoll(flags["--variables-of"]); megabytes > 0) {
    return make_variables(strategy, megabytes);
  }
  torch::manual_seed(static_cast<uint64_t>(index) + 1);
  torch::nn::Sequential front(torch::nn::Linear(8, 300));
  if (flags["--norm"] == "synchronized") front->push_back(muster::SyncBatchNorm(300));
  if (flags["--norm"] == "of-replicas") front->push_back(torch::nn::BatchNorm1d(300));
  front->push_back(torch::nn::ReLU());
  torch::nn::Sequential back(torch::nn::Linear(300, 40), torch::nn::ReLU(), torch::nn::Linear(40, 1));
  const Halves net(strategy, front, back, split(flags["--layers-on"]));
  auto table = strategy.make<muster::Variable>(torch::randn({std::stoi(flags["--table"]), 8}));
  std::vector<muster::Variable> trained = net.trainable();
  trained.push_back(table);
  std::unique_ptr<muster::Optimizer> optimizer;
  if (flags["--optimizer"] == "adam") {
    optimizer = std::make_unique<muster::Adam>(trained, muster::AdamOptions{.learning_rate = 0.01});
  } else {
    optimizer = std::make_unique<muster::Sgd>(trained, muster::SgdOptions{.learning_rate = 0.05, .momentum = 0.9});
  }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const torch::Tensor x = torch::randn({64, 8}, generator), y = x.sum(1, true).sin();
  const muster::Dataset dataset = muster::Dataset::tensors({x, y}).shuffle(64).batch(16).repeat();
  const bool objects = flags["--objects"] == "yes";
  auto batches = strategy.distribute(objects ? dataset : muster::Dataset::tensors({x, y}).batch(16).repeat());
  auto step = muster::function([&](muster::Iterator& it) {
    auto [inputs, targets] = it.next();
    const torch::Tensor ids = inputs.select(1, 0).mul(10).to(torch::kLong).abs().remainder(table.sizes()[0]);
    torch::Tensor loss = torch::mse_loss(net.forward(inputs + muster::lookup(table, ids)), targets);
    optimizer->minimize(loss);
    return loss;
  });
  std::optional<muster::Checkpoints> checkpoints;
  int64_t done = 0;
  std::vector<double> sums{0};  // of the steps that were made
  if (!flags["--checkpoints"].empty()) {
    muster::CheckpointsOptions to{.directory = flags["--checkpoints"]};
    if (objects) {
      to.objects = {{"front", net.half(0)},          {"back", net.half(1)}, {"table", table},
                    {"optimizer", *optimizer},       {"sums", &sums},       {"step", &done},
                    {"batches", {&batches, dataset}}};
    }
    checkpoints.emplace(strategy, to);
    const int64_t restored = checkpoints->restore().value_or(0);
    expect(!objects || done == restored, "a checkpoint has its step");
    done = restored;
    std::cout << "restored " << done << std::endl;
    for (int64_t i = 0; i < done && !objects; ++i) static_cast<void>(batches.next());
  }
  std::optional<muster::Preemption> preemption;
  if (checkpoints && flags["--preemption"] == "yes") preemption.emplace(strategy, *checkpoints);
  const int64_t steps = std::stoll(flags["--steps"]), differs_at = std::stoll(flags["--differs-at"]);
  while (done < steps) {
    if (done == differs_at) differ(strategy, index == 1, flags["--differs-in"]);
    strategy.run(step, batches);
    std::cout << "step " << ++done << std::endl;
    const std::string& file = flags["--waits-for"];
    while (!file.empty() && index == 0 && !std::filesystem::exists(file)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    sums[0] += static_cast<double>(done);
    if (checkpoints && done % std::stoll(flags["--save-every"]) == 0) {
      flags["--save-async"] == "yes" ? checkpoints->save_async(done) : static_cast<void>(checkpoints->save(done));
    }
    if (preemption && preemption->after_step(done)) return muster::kPreempted;
  }

  if (checkpoints) checkpoints->wait();
  expect(!objects || sums[0] == static_cast<double>(steps * (steps + 1) / 2), "each step is in the sums once");
  if (flags["--weights"].empty()) return 0;
  expect_equal_copies(trained);
  expect_equal_copies(optimizer->slots());
  std::ofstream file(flags["--weights"] + "." + std::to_string(index), std::ios::binary);
  std::vector<torch::Tensor> weights = net.weights();
  weights.push_back(table.value());
  if (flags["--slots"] == "yes") {
    for (const muster::Variable& slot : optimizer->slots()) weights.push_back(slot.value());
  }
  for (const torch::Tensor& weight : weights) {
    const torch::Tensor bytes = weight.detach().contiguous();
    file.write(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::streamsize>(bytes.nbytes()));
  }
  return file.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags{{"--steps", "20"},
                                           {"--optimizer", "momentum"},
                                           {"--devices", "/device:CPU:0"},
                                           {"--weights", ""},
                                           {"--checkpoints", ""},
                                           {"--start-timeout", "60000"},
                                           {"--differs-at", "-1"},
                                           {"--table", "50"},
                                           {"--save-every", "5"},
                                           {"--save-async", ""},
                                           {"--objects", ""},
                                           {"--preemption", ""},
                                           {"--bytes-per-pack", "8000000"},
                                           {"--rounds", "0"},
                                           {"--norm", ""},
                                           {"--layers-on", ""},
                                           {"--fit", "0"},
                                           {"--slots", ""},
                                           {"--communication", "auto"},
                                           {"--timeout", "600000"},
                                           {"--stays-away-from", ""},
                                           {"--differs-in", "purpose"},
                                           {"--waits-for", ""},
                                           {"--variables-of", "0"},
                                           {"--export", ""},
                                           {"--linear-models", ""},
                                           {"--metrics", ""},
                                           {"--counts", ""},
                                           {"--accumulate", "1"},
                                           {"--again", ""}};
  for (int i = 1; i + 1 < argc; i += 2) flags.at(argv[i]) = argv[i + 1];
  muster::set_local_options({.devices = {.cpus = 4, .gpus = false}});
  for (bool again = flags["--again"] == "yes";; again = false) {  // once, in the same process
    try {
      return run(flags);
    } catch (const std::exception& error) {
      std::cerr << "in_step: " << error.what() << std::endl;
      if (!again) return 1;
    }
  }
}
