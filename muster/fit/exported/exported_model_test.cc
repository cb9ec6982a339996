#include "muster/fit/exported/exported_model.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/status.h"
#include "muster/graph/serialize.h"

namespace muster::exported_model_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kMul = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";

// Multiplies a batch by a weight.
SizedProgram product(int64_t batch) {
  Program program{.name = "product", .num_values = 3};
  program.arguments = {{.value = 0, .spec = {DType::kFloat, {batch, 2}}}};
  program.variables = {{.value = 1, .name = "w", .spec = {DType::kFloat, {2}}}};
  const int32_t mul = program.intern_op("aten::mul.Tensor", kMul);
  program.instructions = {{.op = mul, .arguments = {Argument{ValueRef{0}}, Argument{ValueRef{1}}}, .results = {{2}}}};
  program.outputs = {2};
  return {batch, std::move(program)};
}

ExportedModel product_model() {
  ExportedModel model;
  model.signature.name = "product";
  model.signature.inputs = {{"x", {DType::kFloat, {kBatchSize, 2}}}};
  model.signature.outputs = {{"y", {DType::kFloat, {kBatchSize, 2}}}};
  model.weights = {{.name = "w", .spec = {DType::kFloat, {2}}, .variable = "net.w", .first_row = 3}};
  model.any = {product(2), product(3)};
  model.sized = {product(1)};
  return model;
}

Status status_of_text(const std::string& text) {
  try {
    exported_model_from_text(text, "file \"m\"");
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

// What becomes of a model that somebody has changed.
template <class Change>
std::string message_after(const Change& change) {
  ExportedModel model = product_model();
  change(model);
  const Status status = status_of_text(to_text(model));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("file \"m\": its exported model: "));
  return status.message();
}

TEST(ExportedModel, IsTheSameAfterItWasWrittenAndRead) {
  const ExportedModel read = exported_model_from_text(to_text(product_model()), "test");

  EXPECT_EQ(to_text(read), to_text(product_model()));
  EXPECT_TRUE(read.signature.any_batch);
  EXPECT_EQ(read.weights[0].variable, "net.w");
  EXPECT_EQ(read.weights[0].first_row, 3);
  EXPECT_EQ(serialize(read.program_for(17)), serialize(product(17).program));
}

TEST(ExportedModel, IsRefusedIfItsProgramIsNotWhatItSays) {
  EXPECT_THAT(message_after([](ExportedModel& model) { model.signature.inputs[0].spec.sizes[1] = 3; }),
              HasSubstr("batches of 1: input \"x\" is float32[1, 2], the model says float32[1, 3]"));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.signature.outputs.clear(); }),
              HasSubstr("it takes 1 tensors and gives 1, the model says 1 and 0"));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.weights.clear(); }),
              HasSubstr("variable \"w\" (float32[2]) is no weight"));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.any->second.program.name = "other"; }),
              HasSubstr("for batches of 2 and 3 differ by more than sizes"));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.any->second.program.outputs = {9}; }),
              HasSubstr("the program for batches of 3: "));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.sized[0].size = -1; }), HasSubstr("batches of -1"));
  EXPECT_THAT(message_after([](ExportedModel& model) {
                model.any.reset();
                model.sized.clear();
              }),
              HasSubstr("it has no program"));
  EXPECT_THAT(message_after([](ExportedModel& model) { model.sized[0].program.devices = {"", "/job:ps"}; }),
              HasSubstr("it is placed on devices"));
}

TEST(ExportedModel, IsRefusedIfItChangesAWeightOrReachesOutside) {
  EXPECT_THAT(message_after([](ExportedModel& model) {
                Program& program = model.sized[0].program;
                program.ops = {{"aten::mul_.Tensor", "aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"}};
                program.instructions[0].arguments = {Argument{ValueRef{1}}, Argument{ValueRef{1}}};
              }),
              HasSubstr("it writes to variable \"w\""));
  EXPECT_THAT(
      message_after([](ExportedModel& model) { model.sized[0].program.intern_op(kReceive.name, kReceive.schema); }),
      HasSubstr("op muster::receive needs other tasks"));
}

TEST(ExportedModel, OfAnotherVersionIsRefusedByItsNumber) {
  json text = json::parse(to_text(product_model()));
  text["version"] = 7;

  const Status status = status_of_text(text.dump());

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("it is of version 7, this Muster reads version 1"));
}

TEST(ExportedModel, ThatIsDamagedIsDataLossWhateverIsMissing) {
  const std::string whole = to_text(product_model());
  for (size_t i = 0; i < whole.size(); i += 7)
    EXPECT_EQ(status_of_text(whole.substr(0, i)).code(), StatusCode::kDataLoss);
  const json sound = json::parse(whole);
  for (const auto& [key, value] : sound.items()) {
    for (const json& wrong : {json(), json(-3), json("text"), json::array({1}), json::object()}) {
      json text = sound;
      text[key] = wrong;
      const Status status = status_of_text(text.dump());
      const bool harmless = key == "name" || ((key == "any" || key == "sized") && wrong.empty());
      const bool version = key == "version" && wrong == json(-3);
      if (harmless) continue;
      EXPECT_EQ(status.code(), version ? StatusCode::kFailedPrecondition : StatusCode::kDataLoss) << key << wrong;
    }
  }
}

}  // namespace
}  // namespace muster::exported_model_test
