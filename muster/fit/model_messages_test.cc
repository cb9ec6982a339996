// What a model says of itself, and of data that does not fit it.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/base/test_errors.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/model.h"

namespace muster::model_messages_test {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ModelMessages, NameTheLossWhoseLabelIsNoClass) {
  const at::Tensor x = torch::ones({4, 3}), three = torch::full({4}, 3, torch::kLong);
  const auto expected = [](const char* range) {
    return AllOf(HasSubstr(range),
                 HasSubstr("a label of loss sparse_categorical_cross_entropy is the number of a class"));
  };
  for (const bool from_logits : {true, false}) {
    Model model =
        compile(torch::nn::Linear(3, 3), {.loss = make_sparse_categorical_cross_entropy({.from_logits = from_logits})});
    EXPECT_THAT(message_of([&] {
                  model.fit({x, three}, {.verbose = 0});
                }),
                expected("has 3, expected at least 0 and below 3"));
    EXPECT_THAT(message_of([&] { model.evaluate({x, -three}); }), expected("has -3, expected at least 0 and below 3"));
    EXPECT_THAT(message_of([&] { model.train_on_batch({x, three}); }), expected("has 3, expected"));
  }
}

TEST(ModelMessages, NameTheTableOfAnIdThatIsTooLarge) {
  struct WordsNet : torch::nn::Module {
    torch::nn::Embedding words{register_module("words", torch::nn::Embedding(10, 1))};
    at::Tensor forward(const at::Tensor& ids) { return words->forward(ids); }
  };
  Model model = compile(std::make_shared<WordsNet>(), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] {
                model.fit({torch::full({4}, 10), torch::ones({4, 1})}, {.verbose = 0});
              }),
              HasSubstr("indices has 10, expected at least 0 and below 10 (weight[0]); of variable \"words.weight\""));
}

TEST(ModelMessages, ShowOnWhichDevicesOfThisProcessAVariableIs) {
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  const Model model = compile(strategy.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error});

  EXPECT_THAT(model.summary(), AllOf(HasSubstr("here on CPU:0, here on CPU:1"), Not(HasSubstr("localhost"))));
}

TEST(ModelMessages, RefuseTargetsThatAreNoWholeNumbersForClasses) {
  const at::Tensor x = torch::ones({4, 3});
  for (const bool from_logits : {true, false}) {
    Model model =
        compile(torch::nn::Linear(3, 3), {.loss = make_sparse_categorical_cross_entropy({.from_logits = from_logits})});

    EXPECT_THAT(message_of([&] {
                  model.fit({x, torch::full({4}, 0.83)}, {.verbose = 0});
                }),
                AllOf(HasSubstr("has a number that is no whole one, expected at least 0 and below 3"),
                      HasSubstr("is the number of a class, a whole one from 0 on")));
    EXPECT_NO_THROW(model.fit({x, torch::full({4}, 2.0)}, {.verbose = 0}));
  }
}

TEST(ModelMessages, SayThatSingleExamplesAreToBeBatchedWithoutAnyMetric) {
  const at::Tensor x = torch::ones({4, 3});
  const auto fitted = [&](int64_t outputs, const Loss& loss, const at::Tensor& y) {
    return message_of([&] {
      compile(torch::nn::Linear(3, outputs), {.loss = loss}).fit(Dataset::tensors({x, y}), {.verbose = 0});
    });
  };

  EXPECT_THAT(fitted(1, mean_squared_error, torch::ones({4})), HasSubstr("of one example: batch() the dataset"));
  EXPECT_THAT(fitted(3, sparse_categorical_cross_entropy, torch::zeros({4}, torch::kLong)),
              HasSubstr("of one example: batch() the dataset"));
}

TEST(ModelMessages, SayThatOneExampleIsABatchOfOne) {
  Model model = compile(torch::nn::Linear(4, 3), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.predict(torch::rand({4})); }),
              AllOf(HasSubstr("float32[3] for a batch of 4 examples"), HasSubstr("unsqueeze")));
}

TEST(ModelMessages, RefuseWeightsOfClassesThatTheModelDoesNotHave) {
  Model model = compile(torch::nn::Linear(2, 3), {.loss = sparse_categorical_cross_entropy});

  EXPECT_THAT(
      message_of([&] {
        model.fit({torch::ones({4, 2}), torch::ones({4}, torch::kLong)}, {.class_weight = {{7, 2.0}}, .verbose = 0});
      }),
      HasSubstr("class_weight: of class 7, but the model gives scores of 3 classes"));
}

TEST(ModelMessages, RefuseToTrainWhileAFunctionIsTraced) {
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({4, 2}), y = torch::ones({4, 1});
  const auto traced = [](const std::function<void()>& what) {
    auto step = function([&](const at::Tensor& given) {
      what();
      return given;
    });
    return message_of([&] { step(torch::ones({})); });
  };

  EXPECT_THAT(traced([&] { model.fit({x, y}, {.verbose = 0}); }), HasSubstr("fit in a traced function"));
  EXPECT_THAT(traced([&] { model.evaluate({x, y}); }), HasSubstr("evaluate in a traced function"));
  EXPECT_THAT(traced([&] { model.predict(x); }), HasSubstr("predict in a traced function"));
  EXPECT_THAT(traced([&] { model.train_on_batch(x, y); }), HasSubstr("train_on_batch in a traced function"));
  EXPECT_THAT(traced([&] { model.test_on_batch(x, y); }), HasSubstr("test_on_batch in a traced function"));
}

TEST(ModelMessages, SayHowAParameterIsFrozen) {
  torch::nn::Linear net(2, 1);
  Model model = compile(net, {.loss = mean_squared_error});
  net->weight.requires_grad_(false);

  EXPECT_THAT(message_of([&] {
                model.fit({torch::ones({4, 2}), torch::ones({4, 1})}, {.verbose = 0});
              }),
              HasSubstr("a module is frozen, by requires_grad_(false), before it is compiled"));
}

}  // namespace
}  // namespace muster::model_messages_test
