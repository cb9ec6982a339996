// What a model says of itself, and of data that does not fit it.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "muster/base/test_errors.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/model.h"
#include "muster/train/embedding.h"

namespace muster::model_messages_test {
namespace {

using testing_support::error_of;
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
    // Far from all classes, as what nobody has written or a wrong column is.
    for (const at::Tensor& far :
         {torch::full({4}, std::numeric_limits<int64_t>::min()), torch::full({4}, std::numeric_limits<int64_t>::max()),
          torch::full({4}, 1e30), torch::full({4}, -1e30, torch::kDouble)}) {
      const at::Tensor one_of_them = torch::cat({torch::ones({3}, far.options()), far.narrow(0, 0, 1)});
      for (const at::Tensor& y : {far, one_of_them}) {
        EXPECT_THAT(message_of([&] { model.fit({x, y}, {.verbose = 0}); }), expected("at least 0 and below 3")) << far;
        EXPECT_THAT(message_of([&] { model.evaluate({x, y}); }), expected("at least 0 and below 3")) << far;
      }
    }
  }
}

TEST(ModelMessages, SayThatTheLastColumnWasTakenForTheTargetIfNoneIsNamed) {
  const at::Tensor x = torch::ones({4, 3}), label = torch::zeros({4, 1}), place = torch::full({4}, 7, torch::kLong);
  const Dataset columns = Dataset::tensors({label, x, place}).named({"clicked", "x", "place"});
  const Dataset shapes =
      Dataset::tensors({x, torch::zeros({4, 2}), torch::ones({4, 3})}).named({"x", "clicked", "place"});
  struct OneInput : torch::nn::Module {
    torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 2))};
    at::Tensor forward(const Features& columns) { return layer->forward(columns["x"]); }
  };
  const auto made = [](const Loss& loss) { return compile(std::make_shared<OneInput>(), {.loss = loss}); };
  const auto said = [](Model model, const Dataset& data) {
    return message_of([&] { model.fit(data.batch(4), {.verbose = 0}); });
  };
  const auto last = HasSubstr("the last column \"place\" was taken as the target");

  EXPECT_THAT(said(made(mean_squared_error), shapes), last) << "its shape is not the output's";
  EXPECT_THAT(said(made(sparse_categorical_cross_entropy), columns), last) << "a label that is no class";
  EXPECT_THAT(said(made(sparse_categorical_cross_entropy), columns.label("place")), Not(last)) << "somebody said so";
  EXPECT_EQ(said(made(mean_squared_error), shapes.label("clicked")), "nothing was thrown");
}

TEST(ModelMessages, NameTheTableOfAnIdThatIsTooLarge) {
  struct WordsNet : torch::nn::Module {
    torch::nn::Embedding words{register_module("words", torch::nn::Embedding(10, 1))};
    at::Tensor forward(const at::Tensor& ids) { return words->forward(ids); }
  };
  Model model = compile(std::make_shared<WordsNet>(), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.fit({torch::full({4}, 10), torch::ones({4, 1})}, {.verbose = 0}); }),
              AllOf(HasSubstr("variable \"words.weight\": "),
                    HasSubstr("indices has 10, expected at least 0 and below 10 (weight[0])")));
}

TEST(ModelMessages, NameTheIdTheRowsAndTheTableOfALookup) {
  struct RatingsNet : torch::nn::Module {
    nn::Embedding users{register_module("users", nn::Embedding({.rows = 10, .dim = 1}))};
    nn::Embedding films{register_module("films", nn::Embedding({.rows = 20, .dim = 1}))};
    at::Tensor forward(const at::Tensor& user, const at::Tensor& film) {
      return users->forward(user) + films->forward(film);
    }
  };
  Model model = compile(std::make_shared<RatingsNet>(), {.optimizer = Adam(), .loss = mean_squared_error});
  const at::Tensor fits = torch::full({4}, 9), too_large = torch::full({4}, 23), y = torch::ones({4, 1});
  const auto of_films = AllOf(HasSubstr("variable \"films.weight\": id 23 of a table with 20 rows, expected below 20"),
                              Not(HasSubstr("users")));

  EXPECT_THAT(message_of([&] { model.fit({fits, too_large, y}, {.verbose = 0}); }), of_films);
  model.fit({fits, fits, y}, {.verbose = 0});
  EXPECT_THAT(message_of([&] { model.fit({fits, too_large, y}, {.verbose = 0}); }), of_films);
  EXPECT_THAT(message_of([&] { model.predict({fits, too_large}); }), of_films);
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

    const double infinity = std::numeric_limits<double>::infinity();
    for (const auto& [number, shown] :
         {std::pair(0.83, " has 0.83, "), std::pair(1e30, " has 1e+30, "), std::pair(-1e30, " has -1e+30, "),
          std::pair(infinity, " has inf, "), std::pair(std::nan(""), " has nan, ")}) {
      const at::Tensor y = torch::cat({torch::ones({3}), torch::full({1}, number)});
      EXPECT_THAT(message_of([&] { model.fit({x, y}, {.verbose = 0}); }),
                  AllOf(HasSubstr(str_cat(shown, "expected at least 0 and below 3")), Not(HasSubstr("out of bounds")),
                        HasSubstr("is the number of a class, a whole one from 0 on")));
    }
    EXPECT_NO_THROW(model.fit({x, torch::full({4}, 2.0)}, {.verbose = 0}));
  }
}

TEST(ModelMessages, RefuseComplexNumbersWhereHalfOfThemWouldBeLost) {
  const at::Tensor x = torch::ones({4, 3}), y = torch::ones({4, 1});
  const auto fitted = [&](int64_t outputs, const Loss& loss, const std::vector<at::Tensor>& data) {
    return message_of([&] { compile(torch::nn::Linear(3, outputs), {.loss = loss}).fit(data, {.verbose = 0}); });
  };
  const at::Tensor complex = y.to(torch::kComplexFloat);

  EXPECT_THAT(fitted(1, mean_squared_error, {x, complex}),
              HasSubstr("loss mean_squared_error: the target is complex64[4, 1], expected real numbers"));
  EXPECT_THAT(fitted(3, sparse_categorical_cross_entropy, {x, complex}),
              HasSubstr("the target is complex64[4, 1], expected real numbers"));
  EXPECT_THAT(fitted(1, mean_squared_error, {x, y, complex.squeeze(1)}),
              HasSubstr("sample_weight: it is complex64[4], expected real numbers"));
}

TEST(ModelMessages, SayThatSingleExamplesAreToBeBatchedWithoutAnyMetric) {
  const at::Tensor x = torch::ones({4, 3});
  const auto fitted = [&](int64_t outputs, const Loss& loss, const at::Tensor& y) {
    return message_of(
        [&] { compile(torch::nn::Linear(3, outputs), {.loss = loss}).fit(Dataset::tensors({x, y}), {.verbose = 0}); });
  };

  EXPECT_THAT(fitted(1, mean_squared_error, torch::ones({4})),
              HasSubstr("loss mean_squared_error: the target is float32[], which is of one example: batch() the "
                        "dataset, or unsqueeze(0)"));
  EXPECT_THAT(fitted(3, sparse_categorical_cross_entropy, torch::zeros({4}, torch::kLong)),
              HasSubstr("of one example: batch() the dataset"));
}

TEST(ModelMessages, LeaveANumberForAWholeBatchToALossThatKnowsWhatItIs) {
  // Of a batch of pictures and nothing that they should be.
  const Dataset batches = Dataset::tensors({torch::ones({6, 4, 3}), torch::full({6}, 2.F)});
  Model model =
      compile(torch::nn::Linear(3, 1),
              {.optimizer = Sgd({.learning_rate = 0}),
               .loss = [](const at::Tensor& output, const at::Tensor& target) { return output.mean() * 0 + target; }});

  EXPECT_EQ(model.fit(batches, {.verbose = 0})["loss"][0], 2);
  EXPECT_EQ(model.train_on_batch(torch::ones({4, 3}), torch::full({}, 3.F)).at("loss"), 3);
}

TEST(ModelMessages, SayThatOneExampleIsABatchOfOne) {
  Model model = compile(torch::nn::Linear(4, 3), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.predict(torch::rand({4})); }),
              AllOf(HasSubstr("float32[3] for a batch of 4 examples"), HasSubstr("unsqueeze")));
}

TEST(ModelMessages, LetAModelGiveSomethingOfAWholeBatchOfNumbers) {
  struct TokensImpl : torch::nn::Module {
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& ids) {
      return {book->forward(ids), book->weight.sum(1)};
    }
    torch::nn::Embedding book{register_module("book", torch::nn::Embedding(7, 2))};
  };
  struct MeanImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& ids) { return book->forward(ids).mean(0, /*keepdim=*/true); }
    torch::nn::Embedding book{register_module("book", torch::nn::Embedding(7, 2))};
  };
  const at::Tensor ids = torch::arange(4);
  Model tokens = compile(std::make_shared<TokensImpl>(), {.loss = {mean_squared_error, Loss()}});
  Model mean = compile(std::make_shared<MeanImpl>(), {.loss = mean_squared_error});
  Model series = compile(torch::nn::Linear(4, 3), {.loss = mean_squared_error});

  EXPECT_EQ(tokens.predict_all(ids).tensors()[1].sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(mean.predict(torch::arange(5)).sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(series.predict(Dataset::from_tensors({torch::rand({4})})).sizes(), at::IntArrayRef({3}));
}

TEST(ModelMessages, SayWhatAFunctionThatMakesDataLacks) {
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  // Taken, so that it is refused in words where it is used.
  const auto makes_a_number = [](const InputContext&) { return 3; };
  static_assert(std::is_constructible_v<ModelInput, decltype(makes_a_number)>);

  for (const ModelInput::Make& make : {ModelInput::Make(), ModelInput::Make(nullptr)}) {
    EXPECT_THAT(message_of([&] { model.fit(make); }),
                HasSubstr("an empty function, expected one that makes a dataset"));
  }
}

TEST(ModelMessages, RefuseWeightsOfClassesThatTheModelDoesNotHave) {
  const auto fitted = [](int64_t outputs, const Loss& loss, const at::Tensor& y,
                         const std::map<int64_t, double>& class_weight) {
    return message_of([&] {
      const at::Tensor x = torch::ones({4, 2});
      torch::nn::Sequential net(torch::nn::Linear(2, outputs), torch::nn::Sigmoid());
      compile(net, {.loss = loss}).fit({x, y}, {.class_weight = class_weight, .verbose = 0});
    });
  };
  const at::Tensor ones = torch::ones({4}, torch::kLong);
  const Loss ignores = make_sparse_categorical_cross_entropy({.ignore_class = 255});

  for (const bool from_logits : {true, false}) {
    EXPECT_THAT(fitted(3, make_sparse_categorical_cross_entropy({.from_logits = from_logits}), ones, {{7, 2.0}}),
                HasSubstr("class_weight: of class 7, but the model gives scores of 3 classes"));
  }
  EXPECT_THAT(fitted(3, ignores, ones, {{254, 0.0}}), HasSubstr("of class 254"));
  EXPECT_EQ(fitted(3, ignores, ones, {{1, 2.0}, {255, 0.0}}), "nothing was thrown") << "what does not count anyway";
  EXPECT_EQ(fitted(1, binary_cross_entropy, ones.view({4, 1}), {{0, 1.0}, {1, 2.0}}), "nothing was thrown")
      << "of two classes";
}

TEST(ModelMessages, RefuseWeightsThatAreNoNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = torch::ones({4, 2}), y = torch::ones({4}, torch::kLong);
  const auto expected = [](const char* thing) { return AllOf(HasSubstr(thing), HasSubstr(", expected a number")); };
  const auto fitted = [&](double of_class_1, double of_loss) {
    return message_of([&] {
      compile(torch::nn::Linear(2, 3), {.loss = sparse_categorical_cross_entropy, .loss_weights = of_loss})
          .fit({x, y}, {.class_weight = {{0, 1.0}, {1, of_class_1}}, .verbose = 0});
    });
  };

  EXPECT_THAT(fitted(-2, 1), expected("class_weight: of class 1 it is -2"));
  EXPECT_THAT(fitted(std::numeric_limits<double>::quiet_NaN(), 1), expected("class_weight: of class 1 it is nan"));
  EXPECT_THAT(fitted(infinity, 1), expected("class_weight: of class 1 it is inf"));
  EXPECT_THAT(fitted(1, std::numeric_limits<double>::quiet_NaN()), expected("loss_weights of output"));
  EXPECT_THAT(fitted(1, infinity), expected("is inf"));
  EXPECT_EQ(fitted(0, 0), "nothing was thrown");
  EXPECT_EQ(fitted(1, -0.5), "nothing was thrown") << "somebody works against the others";
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

TEST(ModelMessages, NameTheOptionThatIsNoNumberOfStepsOrEpochs) {
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({4, 2});
  const ModelInput data{x, torch::ones({4, 1})};
  const auto fitted = [&](const FitOptions& options) { return error_of([&] { model.fit(data, options); }); };

  EXPECT_EQ(fitted({.epochs = -1}), "fit: epochs is -1, expected 0 or more");
  EXPECT_EQ(fitted({.initial_epoch = -3}), "fit: initial_epoch is -3, expected 0 or more");
  EXPECT_EQ(fitted({.steps_per_epoch = 0}), "fit: steps_per_epoch is 0, expected 1 or more");
  EXPECT_EQ(fitted({.validation_data = data, .validation_steps = 0}), "fit: validation_steps is 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { model.evaluate(data, {.steps = 0}); }), "evaluate: steps is 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { model.evaluate(data, {.steps = -2}); }), "evaluate: steps is -2, expected 1 or more");
  EXPECT_EQ(error_of([&] { model.predict(x, {.steps = -2}); }), "predict: steps is -2, expected 1 or more");
}

TEST(ModelMessages, NameATensorWhoseElementsNobodyCanRead) {
  Model model = compile(torch::nn::Linear(2, 1), {.loss = mean_squared_error});
  const at::Tensor x = torch::ones({4, 2}), y = torch::ones({4, 1}), undefined;
  const auto fitted = [&](const at::Tensor& a, const at::Tensor& b) {
    return error_of([&] { model.fit({a, b}, {.verbose = 0}); });
  };

  EXPECT_THAT(fitted(x.to_sparse(), y), HasSubstr("tensor 0 is sparse, or of another layout, expected a dense one"));
  EXPECT_THAT(fitted(x, y.to_sparse()), HasSubstr("tensor 1 is sparse"));
  EXPECT_THAT(fitted(x, torch::ones({4, 1}, torch::kMeta)), HasSubstr("tensor 1 is of the meta device"));
  EXPECT_THAT(fitted(undefined, y), HasSubstr("tensor 0 is undefined"));
  EXPECT_THAT(error_of([&] { model.evaluate({x.to_sparse(), y}); }), HasSubstr("tensor 0 is sparse"));
  EXPECT_THAT(error_of([&] { model.predict(x.to_sparse()); }), HasSubstr("tensor 0 is sparse"));
  EXPECT_THAT(error_of([&] { model.train_on_batch(undefined, undefined); }), HasSubstr("tensor 0 is undefined"));
  EXPECT_THAT(error_of([&] { model.test_on_batch(undefined, undefined); }), HasSubstr("tensor 0 is undefined"));
}

TEST(ModelMessages, RefuseAModuleThatIsNone) {
  const auto expected = HasSubstr("compile: the module is empty (nullptr), expected one such as");

  EXPECT_THAT(error_of([] { compile(torch::nn::Sequential{nullptr}, {.loss = mean_squared_error}); }), expected);
  EXPECT_THAT(error_of([] { compile(torch::nn::Linear{nullptr}, {.loss = mean_squared_error}); }), expected);
  EXPECT_THAT(error_of([] { compile(std::shared_ptr<torch::nn::LinearImpl>(), {.loss = mean_squared_error}); }),
              expected);
}

TEST(ModelMessages, SayHowAParameterIsFrozen) {
  torch::nn::Linear net(2, 1);
  Model model = compile(net, {.loss = mean_squared_error});
  net->weight.requires_grad_(false);

  EXPECT_THAT(message_of([&] { model.fit({torch::ones({4, 2}), torch::ones({4, 1})}, {.verbose = 0}); }),
              HasSubstr("a module is frozen, by requires_grad_(false), before it is compiled"));
}

}  // namespace
}  // namespace muster::model_messages_test
