#include "muster/fit/exported/loaded_model.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "muster/base/test_errors.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/exported/export_model.h"
#include "muster/fit/exported/exported_model.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/train/weights_file.h"

namespace muster::loaded_model_test {
namespace {

using testing_support::caught;

using ::testing::AllOf;
using ::testing::HasSubstr;

class Loaded : public ::testing::Test {
 protected:
  Loaded() {
    export_model(net_, file_, {torch::randn({4, 3}), torch::randn({4, 2})}, {.name = "pair", .inputs = {"x", "y"}});
  }

  // The file with other metadata, or with other tensors.
  Status status_with(const std::map<std::string, std::string>& metadata, const NamedTensors& tensors) {
    write_weights(other_, tensors, metadata);
    return caught([&] { LoadedModel::load(other_); });
  }

  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return layer->forward(x) * y; }
    torch::nn::Linear layer{3, 2};
  };
  TORCH_MODULE(Net);

  Net net_;
  const testing_support::ScopedDirectory folder_;
  const std::string file_ = folder_.path() + "/model.safetensors", other_ = folder_.path() + "/other.safetensors";
  torch::NoGradGuard no_gradients_;
};

TEST_F(Loaded, LeavesNothingBehindInTheWorker) {
  const size_t variables = local_worker().store().all().size(), programs = local_worker().status().programs;

  {
    const LoadedModel model = LoadedModel::load(file_), second = LoadedModel::load(file_);
    model(torch::ones({7, 3}), torch::ones({7, 2}));
    EXPECT_EQ(local_worker().store().all().size(), variables + 4);
  }

  EXPECT_EQ(local_worker().store().all().size(), variables);
  EXPECT_EQ(local_worker().status().programs, programs);
}

TEST_F(Loaded, TakesTensorsThatArePartsOfOthersOrNeedGradients) {
  const LoadedModel model = LoadedModel::load(file_);
  const at::Tensor wide = torch::randn({3, 9}), y = torch::randn({9, 5});
  const at::Tensor x = wide.t().slice(0, 2, 7).requires_grad_();

  const at::Tensor output = model(x, y.slice(0, 1, 6).slice(1, 3, 5));

  EXPECT_TRUE(torch::allclose(output, net_->forward(x, y.slice(0, 1, 6).slice(1, 3, 5)), 1e-5, 1e-6));
  EXPECT_FALSE(output.requires_grad());
}

TEST_F(Loaded, RunsInManyThreadsWithManySizes) {
  const LoadedModel model = LoadedModel::load(file_);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        torch::NoGradGuard no_gradients;
        for (int64_t i = 0; i < 100; ++i) {
          const int64_t size = 1 + (i * 7 + thread) % 90;  // more sizes than programs are kept
          const at::Tensor x = torch::ones({size, 3}), y = torch::ones({size, 2});
          if (!torch::allclose(model(x, y), net_->forward(x, y), 1e-5, 1e-6)) ++wrong;
        }
      });
    }
  }

  EXPECT_EQ(wrong, 0);
}

TEST_F(Loaded, NamesTheInputThatDoesNotFit) {
  const LoadedModel model = LoadedModel::load(file_);
  const at::Tensor x = torch::ones({4, 3}), y = torch::ones({4, 2});
  auto message = [&](const std::vector<at::Tensor>& inputs) {
    const Status status = caught([&] { model.run(inputs); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };

  EXPECT_THAT(message({x}), HasSubstr("model \"pair\": 1 inputs, expected 2 (x: float32[batch, 3]; y: float32["));
  EXPECT_THAT(message({x.to(at::kDouble), y}), HasSubstr("input \"x\" is float64[4, 3], expected float32[batch, 3]"));
  EXPECT_THAT(message({x, x}), HasSubstr("input \"y\" is float32[4, 3], expected float32[batch, 2]"));
  EXPECT_THAT(message({x, torch::ones({5, 2})}), HasSubstr("input \"y\" is a batch of 5, but \"x\" is one of 4"));
  EXPECT_THAT(message({x, at::Tensor()}), HasSubstr("input \"y\" is not defined"));
  EXPECT_THAT(message({x, y.to_sparse()}), HasSubstr("input \"y\" is sparse, expected a dense tensor"));
  EXPECT_THAT(message({x.slice(0, 0, 0), y.slice(0, 0, 0)}), HasSubstr("no batch of 0 examples"));
  EXPECT_THAT(caught([&] { model.run_named({{"x", x}, {"z", y}}); }).message(),
              HasSubstr("input \"y\" is missing; given are x, z"));
  EXPECT_THAT(caught([&] { model.run_named({{"x", x}, {"y", y}, {"z", y}}); }).message(),
              HasSubstr("it has no input \"z\", only x, y"));
}

TEST_F(Loaded, RefusesFilesThatAreDamagedMissingOrOfOthers) {
  std::ifstream in(file_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (const size_t bytes : {size_t{0}, size_t{5}, size_t{500}, whole.size() - 1}) {
    std::ofstream(other_, std::ios::binary) << whole.substr(0, bytes);
    const Status status = caught([&] { LoadedModel::load(other_); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(status.message(), HasSubstr(other_));
    std::filesystem::remove(other_);
  }
  EXPECT_EQ(caught([&] { LoadedModel::load(folder_.path() + "/none"); }).code(), StatusCode::kNotFound);
  EXPECT_THAT(status_with({}, {{"w", torch::ones({2})}}).message(),
              AllOf(HasSubstr(other_), HasSubstr("is no exported model: it has tensors, but no program")));
}

TEST_F(Loaded, RefusesWeightsOfWhichABitIsAnother) {
  std::ifstream in(file_, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(other_, std::ios::binary) << bytes;

  const Status status = caught([&] { LoadedModel::load(other_); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr(other_), HasSubstr("tensor \"layer."), HasSubstr("CRC-32C")));
}

TEST_F(Loaded, RefusesWeightsThatAreNotThoseOfTheProgram) {
  const SafetensorsFile file(file_);
  const at::Tensor weight = read_weight(file, "layer.weight"), bias = read_weight(file, "layer.bias");

  EXPECT_THAT(status_with(file.metadata(), {{"layer.weight", weight}}).message(),
              AllOf(HasSubstr(other_), HasSubstr("tensor \"layer.bias\" is not there")));
  const Status turned = status_with(file.metadata(), {{"layer.weight", weight.t()}, {"layer.bias", bias}});
  EXPECT_EQ(turned.code(), StatusCode::kDataLoss);
  EXPECT_THAT(turned.message(),
              HasSubstr("tensor \"layer.weight\" is float32[3, 2], the program expects float32[2, 3]"));
}

TEST_F(Loaded, RunsOnlyOpsThatAnyProgramMayRun) {
  const SafetensorsFile file(file_);
  ExportedModel model = exported_model_from_text(file.metadata().at(kExportedModelKey), "test");
  for (SizedProgram* sized : {&model.any->first, &model.any->second}) {
    sized->program.intern_op("aten::from_file",
                             "aten::from_file(str filename, bool? shared=None, int? size=0, *, ScalarType? dtype=None, "
                             "Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor");
  }
  model.sized.clear();

  const Status status = status_with(
      {{kExportedModelKey, to_text(model)}},
      {{"layer.weight", read_weight(file, "layer.weight")}, {"layer.bias", read_weight(file, "layer.bias")}});

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(other_), HasSubstr("aten::from_file")));
}

}  // namespace
}  // namespace muster::loaded_model_test
