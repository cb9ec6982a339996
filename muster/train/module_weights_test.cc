#include "muster/train/module_weights.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "muster/base/test_errors.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/train/embedding.h"
#include "muster/train/weights_file.h"

namespace muster::module_weights_test {
namespace {

using testing_support::caught;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::ScopedDirectory;

std::string text_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

torch::nn::Sequential net_of(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
}

class ModuleWeights : public ::testing::Test {
 protected:
  // What a file with these tensors is to a net of one layer, weight float32[2, 3] and bias float32[2].
  Status status_of_loading(const NamedTensors& tensors, const LoadWeightsOptions& options = {}) {
    write_weights(file_, tensors, {});
    torch::nn::Linear layer(3, 2);
    const at::Tensor weight = layer->weight.detach().clone(), bias = layer->bias.detach().clone();
    const Status status = caught([&] { load_safetensors(layer, file_, options); });
    if (!status.ok()) {
      EXPECT_TRUE(torch::equal(layer->weight, weight));
      EXPECT_TRUE(torch::equal(layer->bias, bias));
    }
    return status;
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  const ScopedDirectory folder_;
  const std::string file_ = path("weights.safetensors");
  const at::Tensor weight_ = torch::arange(6).reshape({2, 3}).to(torch::kFloat), bias_ = torch::tensor({0.5F, -1.F});
};

TEST_F(ModuleWeights, OfOneModuleAreThoseOfAnotherAfterSavingAndLoading) {
  auto net = net_of(1), other = net_of(2);
  net->forward(torch::randn({8, 3}));  // changes the running statistics

  save_safetensors(net, file_);
  const LoadWeightsReport report = load_safetensors(other, file_);

  net->eval();
  other->eval();
  const at::Tensor x = torch::randn({5, 3});
  EXPECT_TRUE(torch::equal(net->forward(x), other->forward(x)));
  EXPECT_TRUE(torch::equal(*other->named_buffers().find("1.num_batches_tracked"), torch::ones({}, torch::kLong)));
  EXPECT_EQ(report.loaded.size(), 9U);
  EXPECT_THAT(report.missing, IsEmpty());
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().string(), file_) << "it is left from writing";
  }
}

TEST_F(ModuleWeights, GoToTheVariablesOfAnAdoptedModuleAndToItsTensors) {
  auto net = net_of(1), other = net_of(2);
  save_safetensors(net, file_);
  const ModuleVariables variables = adopt(other);
  auto forward = function([&](at::Tensor x) { return other->forward(x); });
  const at::Tensor x = torch::randn({5, 3});
  net->eval();
  other->eval();
  forward(x);

  load_safetensors(other, file_);

  EXPECT_TRUE(torch::allclose(forward(x), net->forward(x)));
  EXPECT_TRUE(torch::equal(other->forward(x), net->forward(x)));
  EXPECT_TRUE(torch::equal(variables.at("0.weight").value(), *net->named_parameters().find("0.weight")));
}

TEST_F(ModuleWeights, OfVariablesAreSavedWithTheValuesThatTheVariablesHave) {
  torch::nn::Linear layer(3, 2), other(3, 2);
  const ModuleVariables variables = adopt(layer);
  variables.at("weight").assign(weight_);

  save_safetensors(layer, file_);
  load_safetensors(other, file_);

  EXPECT_TRUE(torch::equal(other->weight, weight_));
}

TEST_F(ModuleWeights, GoToEveryCopyOfMirroredVariables) {
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  auto layer = strategy.make<torch::nn::Linear>(3, 2);
  write_weights(file_, {{"weight", weight_}, {"bias", bias_}}, {});

  load_safetensors(layer, file_);

  const Variable weight = adopted(layer).at("weight");
  ASSERT_EQ(weight.copies().size(), 2U);
  for (const Variable& copy : weight.copies()) EXPECT_TRUE(torch::equal(copy.value(), weight_));
}

TEST_F(ModuleWeights, ReplaceNothingButPlainFiles) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0666), 0);

  const Status status = caught([&] { write_weights(file_, {{"weight", weight_}}, {}); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(std::filesystem::is_fifo(file_));
}

TEST_F(ModuleWeights, ThatCannotBeWrittenAreNamedAsTheyWereAskedFor) {
  const Status status = caught([&] { save_safetensors(net_of(1), "/nowhere/net.safetensors"); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("file \"/nowhere/net.safetensors\": create"));
}

TEST_F(ModuleWeights, GoToParameterServersAndComeBack) {
  const InProcessCluster cluster({.workers = 1, .ps = 2});
  const ParameterServerStrategy strategy = testing_support::strategy_of(cluster, Transport::kLocal);
  auto layer = strategy.make<torch::nn::Linear>(3, 2);
  write_weights(file_, {{"weight", weight_}, {"bias", bias_}}, {});

  load_safetensors(layer, file_);
  save_safetensors(layer, path("again.safetensors"));

  EXPECT_TRUE(torch::equal(adopted(layer).at("weight").value(), weight_));
  EXPECT_TRUE(torch::equal(read_weight(SafetensorsFile(path("again.safetensors")), "bias"), bias_));
}

TEST_F(ModuleWeights, AreConvertedToTheTypesOfTheModule) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBool}) {
    torch::nn::Linear layer(3, 2);
    write_weights(file_, {{"weight", weight_.to(type)}, {"bias", bias_.to(at::kHalf)}}, {});

    load_safetensors(layer, file_);

    EXPECT_TRUE(torch::equal(layer->weight, weight_.to(type).to(at::kFloat))) << type;
    EXPECT_TRUE(torch::equal(layer->bias, bias_));
  }
}

TEST_F(ModuleWeights, AreRefusedIfAConversionWouldLoseThem) {
  EXPECT_THAT(status_of_loading({{"weight", weight_.to(at::kComplexFloat)}, {"bias", bias_}}).message(),
              HasSubstr("\"weight\" is complex64[2, 3], expected float32[2, 3]: complex numbers cannot"));
  EXPECT_THAT(status_of_loading({{"weight", weight_}, {"bias", bias_.to(at::kDouble) * 1e300}}).message(),
              HasSubstr("\"bias\" is float64[2], expected float32[2]: it has values that are too large for float32"));
  EXPECT_THAT(status_of_loading({{"weight", weight_.to(at::kDouble)}, {"bias", bias_}}, {.cast = false}).message(),
              HasSubstr("\"weight\" is float64[2, 3], expected float32[2, 3]: LoadWeightsOptions::cast is off"));

  torch::nn::BatchNorm1d norm(2);
  NamedTensors tensors;
  for (const auto& each : norm->named_parameters()) tensors.emplace_back(each.key(), each.value());
  for (const auto& each : norm->named_buffers()) tensors.emplace_back(each.key(), each.value().to(at::kFloat));
  write_weights(file_, tensors, {});
  EXPECT_THAT(caught([&] { load_safetensors(norm, file_); }).message(),
              HasSubstr("\"num_batches_tracked\" is float32[], expected int64[]: fractions cannot become integers"));
}

TEST_F(ModuleWeights, ThatDoNotFitAreNamedAllAtOnceWithTheFile) {
  const Status status = status_of_loading({{"weight", weight_.t()}, {"bais", bias_}});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(file_), HasSubstr("it has no \"bias\""), HasSubstr("the module has no \"bais\""),
                    HasSubstr("\"weight\" is float32[3, 2], expected float32[2, 3]")));
}

TEST_F(ModuleWeights, OfWhichManyAreMissingAreCounted) {
  torch::nn::Sequential deep;
  for (int i = 0; i < 8; ++i) deep->push_back(torch::nn::Linear(2, 2));
  write_weights(file_, {}, {});

  const Status status = caught([&] { load_safetensors(deep, file_); });

  EXPECT_THAT(status.message(), HasSubstr("it has no \"0.weight\", \"0.bias\", \"1.weight\""));
  EXPECT_THAT(status.message(), HasSubstr("\"2.weight\" and 11 more"));
}

TEST_F(ModuleWeights, ThatAreMissingOrTooManyAreReportedIfThatIsAllowed) {
  torch::nn::Linear layer(3, 2);
  const at::Tensor bias = layer->bias.detach().clone();
  write_weights(file_, {{"weight", weight_}, {"head.bias", bias_}}, {});

  const LoadWeightsReport report = load_safetensors(layer, file_, {.strict = false});

  EXPECT_THAT(report.loaded, ElementsAre("weight"));
  EXPECT_THAT(report.missing, ElementsAre("bias"));
  EXPECT_THAT(report.unexpected, ElementsAre("head.bias"));
  EXPECT_TRUE(torch::equal(layer->weight, weight_));
  EXPECT_TRUE(torch::equal(layer->bias, bias));
  EXPECT_EQ(status_of_loading({{"weight", weight_.t()}}, {.strict = false}).code(), StatusCode::kInvalidArgument);
}

TEST_F(ModuleWeights, GetOtherNamesByPrefixesAndByAFunction) {
  const NamedTensors tensors{{"module.fc.gamma", weight_}, {"module.fc.bias", bias_}, {"step", bias_}};
  auto rename = [](const std::string& name) -> std::optional<std::string> {
    if (name == "step") return std::nullopt;
    return name == "gamma" ? "weight" : name;
  };

  EXPECT_TRUE(status_of_loading(tensors, {.prefixes = {{"module.fc.", ""}}, .rename = rename}).ok());

  EXPECT_THAT(status_of_loading(tensors, {.prefixes = {{"module.", "m."}}}).message(),
              HasSubstr("\"module.fc.bias\" (as \"m.fc.bias\")"));
  auto all_alike = [](const std::string&) { return std::optional<std::string>("weight"); };
  EXPECT_THAT(status_of_loading(tensors, {.rename = all_alike}).message(),
              HasSubstr("are both \"weight\" of the module"));
}

// Two layers with one weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_parameter("in", weight);
    register_parameter("out", weight);
  }
  at::Tensor weight = torch::zeros({2, 2});
};
TORCH_MODULE(Tied);

TEST_F(ModuleWeights, ThatAModuleHasTwiceNeedOneOfTheirNamesInTheFileAndAreSavedUnderBoth) {
  for (const char* name : {"in", "out"}) {
    Tied tied;
    write_weights(file_, {{name, torch::ones({2, 2})}}, {});

    load_safetensors(tied, file_);
    save_safetensors(tied, file_);

    EXPECT_TRUE(torch::equal(tied->weight, torch::ones({2, 2}))) << name;
    EXPECT_THAT(SafetensorsFile(file_).names(), ElementsAre("in", "out"));
  }
}

TEST_F(ModuleWeights, InOtherElementTypesTakeLessRoom) {
  auto net = net_of(1);

  save_safetensors(net, file_, {.dtype = at::kHalf, .metadata = {{"epoch", "3"}}});

  const SafetensorsFile file(file_);
  EXPECT_EQ(file.spec("0.weight").dtype, DType::kHalf);
  EXPECT_EQ(file.spec("1.num_batches_tracked").dtype, DType::kLong);
  EXPECT_EQ(file.metadata().at("epoch"), "3");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(caught([&] { save_safetensors(net, file_, {.dtype = at::kInt}); }).code(), StatusCode::kInvalidArgument);
}

TEST_F(ModuleWeights, OfFilesThatAreDamagedOrMissingAreAnErrorThatNamesTheFile) {
  auto net = net_of(1);
  save_safetensors(net, file_);
  const std::string whole = text_in(file_);

  for (const size_t bytes : {size_t{0}, size_t{7}, size_t{100}, whole.size() - 1}) {
    write_text(file_, whole.substr(0, bytes));
    const Status status = caught([&] { load_safetensors(net, file_); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(status.message(), HasSubstr(file_));
  }
  write_text(file_, "PK\x03\x04 this is what torch.save writes, an archive");
  EXPECT_EQ(caught([&] { load_safetensors(net, file_); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(caught([&] { load_safetensors(net, path("none")); }).code(), StatusCode::kNotFound);
  EXPECT_FALSE(caught([&] { save_safetensors(net, path("none/file")); }).ok());
  EXPECT_FALSE(caught([&] { save_safetensors(net, folder_.path()); }).ok());
}

constexpr at::ScalarType kUInt16 = at::ScalarType::UInt16, kUInt32 = at::ScalarType::UInt32,
                         kUInt64 = at::ScalarType::UInt64, kE4M3 = at::ScalarType::Float8_e4m3fn,
                         kE5M2 = at::ScalarType::Float8_e5m2;

TEST_F(ModuleWeights, OfTypesThatOnlyFilesHaveAreConverted) {
  torch::nn::Linear layer(3, 2);
  write_weights(file_, {{"weight", weight_.to(kE4M3)}, {"bias", bias_.to(kE5M2)}}, {});
  load_safetensors(layer, file_);
  EXPECT_TRUE(torch::equal(layer->weight, weight_));
  EXPECT_TRUE(torch::equal(layer->bias, bias_));

  for (const at::ScalarType type : {kUInt16, kUInt32, kUInt64}) {
    write_weights(file_, {{"weight", weight_.to(torch::kLong).to(type)}, {"bias", bias_}}, {});
    torch::nn::Linear other(3, 2);
    const ModuleVariables variables = adopt(other);
    load_safetensors(other, file_);
    EXPECT_TRUE(torch::equal(other->weight, weight_)) << type;
    EXPECT_TRUE(torch::equal(variables.at("weight").value(), weight_)) << type;
  }
}

TEST_F(ModuleWeights, OfTypesThatOnlyFilesHaveAreRefusedWhereTheyCannotBeConverted) {
  const auto message_of_loading = [&](const at::Tensor& given, at::ScalarType expected) {
    torch::nn::Module module;
    module.register_buffer("count", torch::zeros(given.sizes(), torch::kFloat).to(expected));
    write_weights(file_, {{"count", given}}, {});
    return caught([&] { load_safetensors(module, file_); }).message();
  };
  const at::Tensor huge = torch::tensor({std::numeric_limits<int64_t>::min()}).view(kUInt64);  // 2^63

  EXPECT_THAT(message_of_loading(huge, torch::kLong),
              AllOf(HasSubstr(file_), HasSubstr("\"count\" is uint64[1], expected int64[1]"), HasSubstr("too large")));
  EXPECT_THAT(message_of_loading(torch::tensor({300}).to(kUInt16), torch::kByte), HasSubstr("too large for uint8"));
  EXPECT_THAT(
      message_of_loading(torch::tensor({0.5}).to(kE4M3), torch::kLong),
      AllOf(HasSubstr("is float8_e4m3fn[1], expected int64[1]"), HasSubstr("fractions cannot become integers")));
  EXPECT_THAT(message_of_loading(torch::tensor({0.5}), kE4M3),
              AllOf(HasSubstr("expected float8_e4m3fn[1]"), HasSubstr("values of other types are not converted")));
}

TEST_F(ModuleWeights, OfIntegersThatOnlyFloatsHaveRoomForAreRoundedToTheNearest) {
  constexpr uint64_t kFirst = uint64_t{1} << 63;
  // The last two are in the middle between two floats, and one more.
  const std::vector<uint64_t> numbers{
      0, 7, kFirst - 1, kFirst, ~uint64_t{0}, kFirst + 1025, kFirst + (kFirst >> 24), kFirst + (kFirst >> 24) + 1};
  const auto count = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> bits;
  std::vector<float> floats;
  std::vector<double> doubles;
  for (const uint64_t number : numbers) {
    bits.push_back(static_cast<int64_t>(number));
    floats.push_back(static_cast<float>(number));
    doubles.push_back(static_cast<double>(number));
  }
  write_weights(file_, {{"count", torch::tensor(bits).view(kUInt64)}}, {});
  const auto loaded = [&](at::ScalarType type) {
    torch::nn::Module module;
    module.register_buffer("count", torch::zeros({count}, type));
    load_safetensors(module, file_);
    return module.buffers()[0];
  };

  EXPECT_TRUE(torch::equal(loaded(torch::kFloat), torch::tensor(floats)));
  EXPECT_TRUE(torch::equal(loaded(torch::kDouble), torch::from_blob(doubles.data(), {count}, torch::kDouble)));
  EXPECT_TRUE(loaded(torch::kBFloat16)[3].item<double>() == 0x1p63);
  EXPECT_THAT(caught([&] { loaded(torch::kHalf); }).message(), HasSubstr("too large for float16"));
}

TEST_F(ModuleWeights, AreNotWrittenInATypeThatHasNoRoomForThem) {
  const float infinity = std::numeric_limits<float>::infinity();
  torch::nn::Module module;
  module.register_buffer("large", torch::tensor({1.0F, 1e6F}));
  module.register_buffer("infinite", torch::tensor({1.0F, infinity, std::numeric_limits<float>::quiet_NaN()}));
  module.register_buffer("count", torch::tensor({1'000'000}));
  for (const at::ScalarType type : {at::kHalf, kE4M3, kE5M2}) {
    const Status status = caught([&] { save_safetensors(module, file_, {.dtype = type}); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << type;
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr(file_), HasSubstr("\"large\" is float32[2]: it has values that are too large for float"),
              ::testing::Not(HasSubstr("infinite")), ::testing::Not(HasSubstr("count"))));
    EXPECT_FALSE(std::filesystem::exists(file_)) << type;
  }

  save_safetensors(module, file_, {.dtype = at::kBFloat16});

  const at::Tensor infinite = read_weight(SafetensorsFile(file_), "infinite").to(at::kFloat);
  EXPECT_EQ(infinite[1].item<float>(), infinity);
  EXPECT_TRUE(infinite[2].isnan().item<bool>());
}

TEST_F(ModuleWeights, OfTypesThatOnlyFilesHaveComeBackAsTheyWere) {
  torch::nn::Module saved, loaded;
  const at::Tensor numbers = torch::tensor({1, 2, 7});
  for (const at::ScalarType type : {kUInt16, kUInt32, kUInt64, kE4M3, kE5M2}) {
    saved.register_buffer(c10::toString(type), numbers.to(torch::kFloat).to(type));
    loaded.register_buffer(c10::toString(type), torch::zeros({3}).to(type));
  }

  save_safetensors(saved, file_);
  load_safetensors(loaded, file_);

  for (const at::Tensor& buffer : loaded.buffers()) {
    EXPECT_TRUE(torch::equal(buffer.to(torch::kLong), numbers)) << buffer.scalar_type();
  }
  EXPECT_THAT(text_in(file_), AllOf(HasSubstr("\"F8_E5M2\""), HasSubstr("\"U32\"")));
}

TEST_F(ModuleWeights, AreNoBoolsThatAreNeitherZeroNorOne) {
  const std::string header = R"({"flags":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};

  write_text(file_, length + header + std::string("\1\0\1", 3));
  EXPECT_TRUE(torch::equal(read_weight(SafetensorsFile(file_), "flags"), torch::tensor({true, false, true})));
  write_text(file_, length + header + std::string("\1\0\2", 3));
  const Status refusal = caught([&] { read_weight(SafetensorsFile(file_), "flags"); });

  EXPECT_EQ(refusal.code(), StatusCode::kDataLoss);
  EXPECT_THAT(refusal.message(),
              AllOf(HasSubstr("file \"" + file_ + "\": tensor \"flags\": byte 2 is 2, expected 0 or 1")));
}

TEST_F(ModuleWeights, OfAnEmbeddingAreThoseOfItsTable) {
  nn::Embedding first({.rows = 5, .dim = 2, .name = "first", .seed = 1}),
      second({.rows = 5, .dim = 2, .name = "second", .seed = 2});
  const torch::nn::Sequential net(first, torch::nn::Linear(2, 1)), other(second, torch::nn::Linear(2, 1));
  ASSERT_FALSE(torch::equal(first->table().value(), second->table().value()));

  save_safetensors(net, file_);
  load_safetensors(other, file_);
  EXPECT_TRUE(torch::equal(first->table().value(), second->table().value()));
}

TEST_F(ModuleWeights, OfATableAreThoseOfPyTorchsEmbedding) {
  const torch::nn::Sequential of_pytorch(torch::nn::Embedding(5, 2), torch::nn::Linear(2, 1));
  nn::Embedding table({.rows = 5, .dim = 2});
  const torch::nn::Sequential net(table, torch::nn::Linear(2, 1));

  save_safetensors(of_pytorch, file_);
  load_safetensors(net, file_);
  EXPECT_TRUE(torch::equal(table->table().value(), of_pytorch->named_parameters()["0.weight"]));
}

}  // namespace
}  // namespace muster::module_weights_test
