#include "muster/runtime/tuning/kernel_choice.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/runtime/executor/executor.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/tuning/cudnn.h"

namespace muster {
namespace {

std::vector<c10::IValue> convolution_stack(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return {x,
          w,
          b,
          std::vector<int64_t>{1, 1},
          std::vector<int64_t>{0, 0},
          std::vector<int64_t>{1, 1},
          false,
          std::vector<int64_t>{0, 0},
          1};
}

c10::OperatorHandle op(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

std::shared_ptr<KernelChoice> choice_for(const char* name, Autotuner& tuner, std::shared_ptr<ImageOrder> order) {
  return KernelChoice::make(op(name), form_of(name).images, at::kCPU, tuner, std::move(order));
}

std::vector<c10::IValue> gradients_stack(const at::Tensor& g, const at::Tensor& x, const at::Tensor& w,
                                         bool of_image = true) {
  return {g,
          x,
          w,
          std::vector<int64_t>{w.size(0)},
          std::vector<int64_t>{1, 1},
          std::vector<int64_t>{0, 0},
          std::vector<int64_t>{1, 1},
          false,
          std::vector<int64_t>{0, 0},
          1,
          c10::List<bool>({of_image, true, true})};
}

// That has chosen `kernel` for what is on the stack.
std::shared_ptr<KernelChoice> choice_of(const char* kernel, const char* name, std::vector<c10::IValue> stack,
                                        Autotuner& told) {
  Autotuner table;
  std::vector<c10::IValue> measured = stack;
  choice_for(name, table, std::make_shared<ImageOrder>(false))->call(measured);
  for (const auto& [key, choice] : table.all()) told.remember(key, kernel);
  auto choice = choice_for(name, told, std::make_shared<ImageOrder>(false));
  choice->call(stack);
  return choice;
}

TEST(KernelChoice, HasNothingToChooseForMostOps) {
  Autotuner table;

  EXPECT_EQ(choice_for("aten::relu", table, std::make_shared<ImageOrder>(false)), nullptr);
  EXPECT_NE(choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false)), nullptr);
}

TEST(KernelChoice, GivesTheSameConvolutionWhateverItChose) {
  PlainTensors plain;
  torch::manual_seed(1);
  at::Tensor x = torch::rand({2, 8, 8, 8}), w = torch::rand({9, 8, 3, 3}), b = torch::rand({9});
  const at::Tensor expected = torch::conv2d(x, w, b);

  for (const char* kernel : {"recorded", "channels_last", "native", "winograd"}) {
    Autotuner table;
    auto choice = choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false));
    auto stack = convolution_stack(x, w, b);
    choice->call(stack);  // measures
    ASSERT_EQ(table.all().size(), 1u);
    Autotuner told;
    told.remember(table.all().begin()->first, kernel);
    auto other = choice_for("aten::convolution", told, std::make_shared<ImageOrder>(false));
    stack = convolution_stack(x, w, b);
    other->call(stack);

    EXPECT_TRUE(torch::allclose(stack[0].toTensor(), expected, 1e-4, 1e-4)) << kernel;
  }
}

TEST(KernelChoice, TakesOneNumberForBothDimensions) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 3, 8, 8}), w = torch::rand({4, 3, 3, 3}), b = torch::rand({4});
  const at::Tensor expected = torch::conv2d(x, w, b, 2, 1);
  std::vector<c10::IValue> given = convolution_stack(x, w, b);
  given[3] = std::vector<int64_t>{2};
  given[4] = given[5] = std::vector<int64_t>{1};
  given[7] = std::vector<int64_t>{0};

  for (const char* kernel : {"recorded", "channels_last", "native"}) {
    Autotuner table;
    auto choice = choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false));
    auto stack = given;
    choice->call(stack);  // measures
    Autotuner told;
    told.remember(table.all().begin()->first, kernel);
    auto other = choice_for("aten::convolution", told, std::make_shared<ImageOrder>(false));
    stack = given;
    other->call(stack);

    EXPECT_TRUE(torch::allclose(stack[0].toTensor(), expected, 1e-4, 1e-5));
  }
}

TEST(KernelChoice, GivesTheSameGradientsWhateverItChose) {
  PlainTensors plain;
  torch::manual_seed(1);
  at::Tensor x = torch::rand({2, 8, 8, 8}), w = torch::rand({9, 8, 3, 3}), g = torch::rand({2, 9, 6, 6});
  auto stack_of = [&] {
    return std::vector<c10::IValue>{g,
                                    x,
                                    w,
                                    std::vector<int64_t>{9},
                                    std::vector<int64_t>{1, 1},
                                    std::vector<int64_t>{0, 0},
                                    std::vector<int64_t>{1, 1},
                                    false,
                                    std::vector<int64_t>{0, 0},
                                    1,
                                    c10::List<bool>({true, true, true})};
  };
  auto expected = stack_of();
  op("aten::convolution_backward").callBoxed(expected);

  for (const char* kernel : {"channels_last", "native", "winograd"}) {
    Autotuner table;
    auto stack = stack_of();
    choice_for("aten::convolution_backward", table, std::make_shared<ImageOrder>(false))->call(stack);
    Autotuner told;
    told.remember(table.all().begin()->first, kernel);
    stack = stack_of();
    choice_for("aten::convolution_backward", told, std::make_shared<ImageOrder>(false))->call(stack);

    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(stack[i].toTensor(), expected[i].toTensor(), 1e-4, 1e-4))
          << kernel << ", gradient " << i;
    }
  }
}

// A program whose arguments may have any size calls with whatever it gets.
TEST(KernelChoice, TakesWhatDoesNotFitTheKernelThatItChose) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 8, 8, 8}), w = torch::rand({9, 8, 3, 3}), b = torch::rand({9});
  Autotuner table;
  auto stack = convolution_stack(x, w, b);
  choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false))->call(stack);
  Autotuner told;
  told.remember(table.all().begin()->first, "winograd");
  auto choice = choice_for("aten::convolution", told, std::make_shared<ImageOrder>(false));
  stack = convolution_stack(x, w, b);
  choice->call(stack);

  for (const at::Tensor& other : {torch::rand({0, 8, 8, 8}), torch::rand({1, 8, 3, 4}), torch::rand({3, 8, 30, 9})}) {
    stack = convolution_stack(other, w, b);
    choice->call(stack);

    EXPECT_TRUE(torch::allclose(stack[0].toTensor(), torch::conv2d(other, w, b), 1e-4, 1e-4)) << other.sizes();
  }
}

TEST(KernelChoice, RefusesAGradientThatDoesNotFitWhateverItChose) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 8, 8, 8}), w = torch::rand({9, 8, 3, 3}), g = torch::rand({2, 9, 6, 6});
  at::Tensor narrow = torch::rand({4, 3, 3, 3});
  constexpr const char* kOp = "aten::convolution_backward";
  for (const char* kernel : {"channels_last", "native", "winograd"}) {
    Autotuner told;
    auto choice = choice_of(kernel, kOp, gradients_stack(g, x, w), told);
    auto call = [&](const at::Tensor& gradient, const at::Tensor& image) {
      auto stack = gradients_stack(gradient, image, w);
      choice->call(stack);
    };

    EXPECT_ANY_THROW(call(torch::rand({1, 9, 1, 1}), torch::rand({4, 8, 64, 64}))) << kernel << ", too small";
    EXPECT_ANY_THROW(call(torch::rand({2, 9, 6, 8}), torch::rand({2, 8, 10, 8}))) << kernel << ", sides exchanged";
    EXPECT_ANY_THROW(call(torch::rand({2, 9, 7, 7}), x)) << kernel << ", too large";
    EXPECT_ANY_THROW(call(torch::rand({2, 8, 6, 6}), x)) << kernel << ", of other channels";
  }
  Autotuner told;
  auto choice = choice_of("patches", kOp,
                          gradients_stack(torch::rand({2, 4, 6, 8}), torch::rand({2, 3, 8, 10}), narrow,
                                          /*of_image=*/false),
                          told);
  auto stack = gradients_stack(torch::rand({2, 4, 8, 6}), torch::rand({2, 3, 8, 10}), narrow, /*of_image=*/false);
  EXPECT_ANY_THROW(choice->call(stack)) << "patches, sides exchanged";
}

// What is wrong with them, libtorch says; kernels in its place are not to look at them first.
TEST(KernelChoice, LeavesOperandsThatDoNotFitToLibtorch) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 8, 8, 8}), w = torch::rand({9, 8, 3, 3}), b = torch::rand({9});
  const std::vector<std::vector<int64_t>> kOdd = {{}, {1, 1, 1}, {-1, 0}, {int64_t{1} << 62, 1}};
  for (const std::vector<int64_t>& odd : kOdd) {
    Autotuner tuner;
    auto stack = convolution_stack(x, w, b);
    stack[4] = odd;
    EXPECT_ANY_THROW(choice_for("aten::convolution", tuner, std::make_shared<ImageOrder>(false))->call(stack));
    stack = gradients_stack(torch::rand({2, 9, 6, 6}), x, w);
    stack[5] = odd;
    EXPECT_ANY_THROW(choice_for("aten::convolution_backward", tuner, std::make_shared<ImageOrder>(false))->call(stack));
  }
  Autotuner told;
  auto choice = choice_of("winograd", "aten::convolution", convolution_stack(x, w, b), told);
  for (const at::Tensor& odd : {torch::rand({1}), torch::rand({}), torch::rand({9, 1}), torch::rand({8})}) {
    auto stack = convolution_stack(x, w, odd);
    EXPECT_ANY_THROW(choice->call(stack)) << "a bias of " << odd.sizes();
  }
}

TEST(KernelChoice, SurvivesWeightsWithoutElements) {
  PlainTensors plain;
  Autotuner tuner;
  const at::Tensor x = torch::rand({1, 8, 8, 8}), g = torch::rand({1, 0, 6, 6}), w = torch::rand({0, 8, 3, 3});
  for (bool of_image : {true, false}) {
    auto stack = gradients_stack(g, x, w, of_image);
    try {
      choice_for("aten::convolution_backward", tuner, std::make_shared<ImageOrder>(false))->call(stack);
    } catch (const std::exception&) {  // as libtorch likes
    }
  }
  Autotuner told;
  const auto honest = gradients_stack(torch::rand({1, 4, 6, 6}), torch::rand({1, 3, 8, 8}), torch::rand({4, 3, 3, 3}),
                                      /*of_image=*/false);
  auto choice = choice_of("patches", "aten::convolution_backward", honest, told);
  auto stack = gradients_stack(g, x, w, /*of_image=*/false);
  try {
    choice->call(stack);
  } catch (const std::exception&) {
  }
}

TEST(KernelChoice, KnowsNumbersWhoseSignIsNotInTheirMemory) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 8, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast), w = torch::rand({9, 8, 3, 3});
  at::Tensor b = torch::rand({9}), g = torch::rand({2, 9, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
  auto negative = [](const at::Tensor& tensor) { return at::_neg_view(tensor); };
  ASSERT_TRUE(negative(w).is_neg());
  auto expected = gradients_stack(-g, -x, -w);
  op("aten::convolution_backward").callBoxed(expected);

  Autotuner told;
  auto stack = convolution_stack(negative(x), w, negative(b));
  choice_of("winograd", "aten::convolution", stack, told)->call(stack);
  EXPECT_TRUE(torch::allclose(stack[0].toTensor(), torch::conv2d(-x, w, -b), 1e-4, 1e-4));
  stack = convolution_stack(x, negative(w), b);
  choice_of("winograd", "aten::convolution", stack, told)->call(stack);
  EXPECT_TRUE(torch::allclose(stack[0].toTensor(), torch::conv2d(x, -w, b), 1e-4, 1e-4));
  stack = gradients_stack(negative(g), negative(x), negative(w));
  choice_of("winograd", "aten::convolution_backward", stack, told)->call(stack);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::allclose(stack[i].toTensor(), expected[i].toTensor(), 1e-4, 1e-4)) << "gradient " << i;
  }
}

TEST(KernelChoice, GivesTheSameGradientsOfAFirstLayerWhateverItChose) {
  PlainTensors plain;
  torch::manual_seed(1);
  at::Tensor x = torch::rand({2, 3, 9, 8}), w = torch::rand({4, 3, 3, 2}), g = torch::rand({2, 4, 5, 9});
  auto stack_of = [&](bool bias) {
    return std::vector<c10::IValue>{g,
                                    x,
                                    w,
                                    std::vector<int64_t>{4},
                                    std::vector<int64_t>{2, 1},
                                    std::vector<int64_t>{1, 1},
                                    std::vector<int64_t>{1, 1},
                                    false,
                                    std::vector<int64_t>{0, 0},
                                    1,
                                    c10::List<bool>({false, true, bias})};
  };

  for (bool bias : {true, false}) {
    auto expected = stack_of(bias);
    op("aten::convolution_backward").callBoxed(expected);
    Autotuner table;
    auto stack = stack_of(bias);
    choice_for("aten::convolution_backward", table, std::make_shared<ImageOrder>(false))->call(stack);
    for (const char* kernel : {"channels_last", "native", "patches"}) {
      Autotuner told;
      told.remember(table.all().begin()->first, kernel);
      stack = stack_of(bias);
      choice_for("aten::convolution_backward", told, std::make_shared<ImageOrder>(false))->call(stack);

      EXPECT_FALSE(stack[0].toTensor().defined());
      EXPECT_TRUE(torch::allclose(stack[1].toTensor(), expected[1].toTensor(), 1e-4, 1e-4));
      EXPECT_EQ(stack[2].toTensor().defined(), bias);
      EXPECT_TRUE(!bias || torch::allclose(stack[2].toTensor(), expected[2].toTensor(), 1e-4, 1e-4));
    }
  }
}

TEST(KernelChoice, RemembersPerShape) {
  PlainTensors plain;
  Autotuner table;
  at::Tensor w = torch::rand({4, 3, 3, 3}), b = torch::rand({4});

  for (int64_t size : {8, 9, 8}) {
    auto choice = choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false));
    auto stack = convolution_stack(torch::rand({2, 3, size, size}), w, b);
    choice->call(stack);
  }

  EXPECT_EQ(table.all().size(), 2u);
}

TEST(KernelChoice, RunsOneChannelInChannelsLastOrder) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 1, 8, 8}), w = torch::rand({4, 1, 3, 3}), b = torch::rand({4});
  Autotuner table;
  auto stack = convolution_stack(x, w, b);
  choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false))->call(stack);
  Autotuner told;
  told.remember(table.all().begin()->first, "channels_last");
  auto choice = choice_for("aten::convolution", told, std::make_shared<ImageOrder>(false));

  stack = convolution_stack(x, w, b);
  choice->call(stack);

  EXPECT_FALSE(stack[0].toTensor().is_contiguous());
  EXPECT_TRUE(stack[0].toTensor().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::allclose(stack[0].toTensor(), torch::conv2d(x, w, b), 1e-4, 1e-5));
}

TEST(KernelChoice, ChoosesAgainWhenTheProgramHasComeToWantChannelsLastImages) {
  PlainTensors plain;
  at::Tensor x = torch::rand({2, 3, 8, 8}), w = torch::rand({4, 3, 3, 3}), b = torch::rand({4});
  Autotuner table;
  auto stack = convolution_stack(x, w, b);
  choice_for("aten::convolution", table, std::make_shared<ImageOrder>(false))->call(stack);
  Autotuner told;
  told.remember(table.all().begin()->first, "recorded");
  auto order = std::make_shared<ImageOrder>(false);
  auto choice = choice_for("aten::convolution", told, order);
  auto call = [&] {
    stack = convolution_stack(x, w, b);
    choice->call(stack);
    return stack[0].toTensor();
  };

  EXPECT_TRUE(call().is_contiguous());
  EXPECT_EQ(told.all().size(), 1u);
  order->store(true);

  EXPECT_TRUE(call().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(call().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(told.all().size(), 2u);
}

TEST(KernelChoice, UsualOrderHasTheUsualStridesWhereTheSizesLeaveThemOpen) {
  const at::Tensor one_channel = torch::rand({2, 1, 3, 3}).as_strided({2, 1, 3, 3}, {9, 1, 3, 1});

  EXPECT_EQ(in_usual_order(one_channel).strides(), at::IntArrayRef({9, 9, 3, 1}));
  EXPECT_TRUE(in_usual_order(one_channel).equal(one_channel));
}

TEST(KernelChoice, ReturnsChannelsLastImagesOnceOneOfTheProgramWantsThem) {
  PlainTensors plain;
  Autotuner table;
  auto order = std::make_shared<ImageOrder>(true);
  auto choice = choice_for("aten::convolution", table, order);
  auto stack = convolution_stack(torch::rand({2, 3, 8, 8}), torch::rand({4, 3, 3, 3}), torch::rand({4}));

  choice->call(stack);

  EXPECT_TRUE(stack[0].toTensor().is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(KernelChoice, CopiesImagesToTheOrderThatOthersHaveChosenOnGpus) {
  PlainTensors plain;
  Autotuner table;
  auto order = std::make_shared<ImageOrder>(false);
  const ImageKernels* kernels = form_of("aten::_to_copy").images;
  const auto copy = KernelChoice::make(op("aten::_to_copy"), kernels, at::Device(at::kCUDA, 0), table, order);
  const at::Tensor weights = torch::rand({4, 3, 3, 3});
  auto copied = [&] {
    std::vector<c10::IValue> stack{weights, at::kDouble, {}, {}, {}, false, {}};
    copy->call(stack);
    return stack[0].toTensor();
  };

  EXPECT_TRUE(copied().is_contiguous());
  order->store(true);
  EXPECT_TRUE(copied().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::equal(copied(), weights.to(torch::kDouble)));
  EXPECT_EQ(choice_for("aten::_to_copy", table, order), nullptr) << "on CPUs";
}

TEST(MeasuredConvolutions, LeaveTheSwitchAsTheyFoundItWhoeverGoesFirst) {
  ASSERT_FALSE(at::globalContext().benchmarkCuDNN());
  auto first = std::make_unique<MeasuredConvolutions>(), second = std::make_unique<MeasuredConvolutions>();
  first.reset();
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
  second.reset();
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
}

}  // namespace
}  // namespace muster
