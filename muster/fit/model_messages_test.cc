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
    EXPECT_THAT(message_of([&] { model.fit({x, three}, {.verbose = 0}); }),
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

  EXPECT_THAT(message_of([&] { model.fit({torch::full({4}, 10), torch::ones({4, 1})}, {.verbose = 0}); }),
              HasSubstr("indices has 10, expected at least 0 and below 10 (weight[0]); of variable \"words.weight\""));
}

TEST(ModelMessages, ShowOnWhichDevicesOfThisProcessAVariableIs) {
  const MirroredStrategy strategy({"/device:CPU:0", "/device:CPU:1"});
  const Model model = compile(strategy.make<torch::nn::Linear>(3, 1), {.loss = mean_squared_error});

  EXPECT_THAT(model.summary(), AllOf(HasSubstr("here on CPU:0, here on CPU:1"), Not(HasSubstr("localhost"))));
}

}  // namespace
}  // namespace muster::model_messages_test
