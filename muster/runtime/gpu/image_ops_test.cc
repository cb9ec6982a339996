#include "muster/runtime/gpu/image_ops.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/base/test_errors.h"
#include "muster/runtime/devices.h"

namespace muster::image_ops_test {

using testing_support::message_of;

struct Case {
  std::vector<int64_t> sizes;
  bool channels_last;
  at::ScalarType type = at::kFloat;
  bool sum = true;  // with another tensor
  bool relu = true;
  float offset = 0;  // of all numbers
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << at::IntArrayRef(c.sizes) << (c.channels_last ? " channels last " : " ") << c.type
             << (c.sum ? " sum" : "") << (c.relu ? " relu" : "") << " offset " << c.offset;
}

constexpr double kMomentum = 0.1, kEpsilon = 1e-5;

// What the ops are given, and their results in order: of the first the output, mean, invstd and both running
// statistics, of the second the gradients of input, weight, bias and the other summand.
struct Numbers {
  Numbers(const Case& c, at::Device device) {
    torch::manual_seed(1);
    auto image = [&](double offset) {
      at::Tensor made = (torch::randn(c.sizes) * 2 + offset).to(c.type).to(device);
      return c.channels_last && made.dim() == 4 ? made.contiguous(at::MemoryFormat::ChannelsLast) : made;
    };
    const int64_t channels = c.sizes[1];
    input = image(c.offset), other = image(0.5), gradient = image(0), more = image(0);
    weight = torch::rand({channels}).to(device) + 0.5, bias = torch::randn({channels}).to(device);
    mean = torch::randn({channels}).to(device), variance = torch::rand({channels}).to(device);
  }

  std::vector<at::Tensor> ours(const Case& c) {
    std::vector<c10::IValue> stack{input, weight,    bias,     mean,          variance,
                                   true,  kMomentum, kEpsilon, c10::IValue(), c.relu};
    if (c.sum) stack[8] = other;
    image_ops::all().normalize.callBoxed(&stack);
    std::vector<at::Tensor> results;
    for (int i = 0; i < 3; ++i) results.push_back(stack[i].toTensor());
    positive = stack[3].toTensor();
    results.push_back(mean);
    results.push_back(variance);
    std::vector<c10::IValue> back{gradient,      input,         weight,   mean,     variance,
                                  results[1],    results[2],    true,     kEpsilon, all_wanted(),
                                  c10::IValue(), c10::IValue(), positive, c.sum};
    if (c.sum) back[10] = more;
    if (c.relu) back[11] = results[0];
    image_ops::all().normalize_backward.callBoxed(&back);
    for (int i = 0; i < (c.sum ? 4 : 3); ++i) results.push_back(back[i].toTensor());
    return results;
  }

  // In double, by what the ops stand for.
  std::vector<at::Tensor> theirs(const Case& c) const {
    auto exact = [](const at::Tensor& tensor) { return tensor.cpu().to(at::kDouble); };
    const at::Tensor x = exact(input), w = exact(weight), b = exact(bias), m = exact(mean), v = exact(variance);
    auto [y, save_mean, save_invstd] = at::native_batch_norm(x, w, b, m, v, true, kMomentum, kEpsilon);
    if (c.sum) y = y + exact(other);
    at::Tensor g = exact(gradient);
    if (c.sum) g = g + exact(more);
    if (c.relu) y = at::relu(y), g = at::threshold_backward(g, y, 0);
    const auto [dx, dw, db] =
        at::native_batch_norm_backward(g, x, w, m, v, save_mean, save_invstd, true, kEpsilon, {true, true, true});
    std::vector<at::Tensor> results{y, save_mean, save_invstd, m, v, dx, dw, db};
    if (c.sum) results.push_back(g);
    return results;
  }

  static c10::IValue all_wanted() { return c10::List<bool>({true, true, true}); }

  at::Tensor input, other, gradient, more, weight, bias, mean, variance, positive;
};

double error(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours.cpu().to(at::kDouble) - theirs).norm() / theirs.norm()).item<double>();
}

class ImageOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (LocalDevices().names().size() == 1) GTEST_SKIP() << "no GPU, or MUSTER_GPUS=off";
    if (!image_ops::run_on(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "no kernels for this GPU";
  }

  static void compare(const Case& c, bool by_kernels) {
    Numbers numbers(c, at::Device(at::kCUDA, 0));
    const std::vector<at::Tensor> expected = numbers.theirs(c), results = numbers.ours(c);

    EXPECT_EQ(numbers.positive.defined(), by_kernels && c.relu) << c;
    EXPECT_EQ(results[0].strides(), numbers.input.strides()) << c;
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      // An image is rounded to its own type; of sums of it, and of which number is positive, that decides a little.
      const double limit = c.type == at::kFloat ? 1e-5 : 1e-2;
      EXPECT_LT(error(results[i], expected[i]), limit) << c << ": result " << i;
    }
  }
};

TEST_F(ImageOps, NormalizeAsLibtorchDoesUpToRounding) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool last : {true, false}) {
      for (const bool sum : {true, false}) {
        for (const bool relu : {true, false}) {
          if (sum && !relu) continue;
          compare({{8, 64, 28, 28}, last, type, sum, relu}, true);
        }
      }
      compare({{4, 24, 9, 9}, last, type}, true);
      compare({{2, 520, 7, 7}, last, type}, true);
      compare({{3, 8, 1, 1}, true, type}, true);
    }
    compare({{5, 3, 7, 9}, false, type}, true);
    compare({{1, 1, 130, 70}, false, type, false}, true);
    compare({{300, 64}, false, type, false}, true);
    compare({{7, 5, 33}, false, type, false}, true);
  }
}

TEST_F(ImageOps, LeaveWhatTheKernelsDoNotTakeToLibtorch) {
  compare({{4, 6, 5, 5}, true, at::kFloat}, false);
  compare({{4, 9, 5, 5}, true, at::kBFloat16}, false);
}

TEST_F(ImageOps, FindTheVarianceOfNumbersFarFromZero) {
  const Case c{{16, 32, 28, 28}, true, at::kFloat, false, false, 1000};
  for (const bool last : {true, false}) {
    Case here = c;
    here.channels_last = last;
    Numbers numbers(here, at::Device(at::kCUDA, 0));
    const std::vector<at::Tensor> expected = numbers.theirs(here), results = numbers.ours(here);

    EXPECT_LT(error(results[2], expected[2]), 1e-5);
    EXPECT_LT(error(results[0], expected[0]), 1e-4);
  }
}

TEST_F(ImageOps, TakeOperandsInAnotherOrderOfMemory) {
  const Case c{{4, 16, 8, 8}, true};
  Numbers numbers(c, at::Device(at::kCUDA, 0));
  const std::vector<at::Tensor> expected = numbers.theirs(c);
  numbers.other = numbers.other.contiguous();
  numbers.gradient = numbers.gradient.contiguous();

  const std::vector<at::Tensor> results = numbers.ours(c);

  EXPECT_TRUE(numbers.positive.defined());
  for (size_t i = 0; i < results.size(); ++i) EXPECT_LT(error(results[i], expected[i]), 1e-5) << i;
}

TEST_F(ImageOps, KeepWhatIsNotANumberAsLibtorchDoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case c{{2, 8, 6, 6}, true};
  Numbers numbers(c, at::Device(at::kCUDA, 0));
  numbers.other.index_put_({0, 3, 2, 2}, nan);
  numbers.input.index_put_({1, 5, 0, 0}, nan);
  const std::vector<at::Tensor> expected = numbers.theirs(c);

  const std::vector<at::Tensor> results = numbers.ours(c);

  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(torch::equal(results[i].isnan().cpu(), expected[i].isnan())) << i;
  }
}

TEST_F(ImageOps, RefuseOperandsOfOtherSizes) {
  Numbers numbers({{2, 8, 6, 6}, true}, at::Device(at::kCUDA, 0));
  numbers.weight = torch::ones({7}, at::kCUDA);

  EXPECT_NE(message_of([&] { numbers.ours({{2, 8, 6, 6}, true}); }).find("weight is float32[7]"), std::string::npos);
}

std::vector<c10::IValue> pooling(const at::Tensor& image, std::vector<int64_t> size, std::vector<int64_t> stride,
                                 std::vector<int64_t> padding, std::vector<int64_t> dilation, bool ceil_mode) {
  return {image, size, stride, padding, dilation, ceil_mode};
}

TEST_F(ImageOps, PoolWithTheBitsOfLibtorch) {
  struct Window {
    std::vector<int64_t> size, stride, padding, dilation;
    bool ceil_mode;
  };
  const std::vector<Window> all{{{3, 3}, {2, 2}, {1, 1}, {1, 1}, false},
                                {{2, 2}, {}, {0, 0}, {1, 1}, false},
                                {{3, 2}, {2, 3}, {1, 0}, {1, 1}, true},
                                {{3, 3}, {1, 2}, {1, 1}, {2, 2}, false}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool last : {true, false}) {
      for (const Window& window : all) {
        torch::manual_seed(1);
        at::Tensor image = torch::randint(20, {3, 16, 13, 17}, at::kCUDA).to(type);  // with several greatest ones
        image.index_put_({1, 2, 3, 4}, std::numeric_limits<float>::quiet_NaN());
        if (last) image = image.contiguous(at::MemoryFormat::ChannelsLast);
        auto stack = pooling(image, window.size, window.stride, window.padding, window.dilation, window.ceil_mode);
        const auto [expected, indices] = at::max_pool2d_with_indices(image, window.size, window.stride, window.padding,
                                                                     window.dilation, window.ceil_mode);
        const at::Tensor gradient = torch::randint_like(expected, 8);  // sums of whole numbers have no order

        image_ops::all().max_pool.callBoxed(&stack);
        std::vector<c10::IValue> back{gradient,       image,           window.size,      window.stride,
                                      window.padding, window.dilation, window.ceil_mode, stack[1]};
        image_ops::all().max_pool_backward.callBoxed(&back);

        EXPECT_EQ(stack[1].toTensor().scalar_type(), at::kByte);
        EXPECT_TRUE(torch::equal(stack[0].toTensor().nan_to_num(-1), expected.nan_to_num(-1)));
        const at::Tensor usual = image.contiguous();  // libtorch's other kernel adds in an order of its own
        const at::Tensor wanted = at::max_pool2d_with_indices_backward(gradient.contiguous(), usual, window.size,
                                                                       window.stride, window.padding, window.dilation,
                                                                       window.ceil_mode, indices.contiguous());
        EXPECT_TRUE(torch::equal(back[0].toTensor(), wanted)) << type << last << at::IntArrayRef(window.size);
      }
    }
  }
}

TEST_F(ImageOps, RefuseAGradientOfOtherWindows) {
  const at::Tensor image = torch::rand({2, 8, 8, 8}, at::kCUDA);
  auto stack = pooling(image, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false);
  image_ops::all().max_pool.callBoxed(&stack);
  const at::Tensor smaller = torch::rand({2, 8, 12, 12}, at::kCUDA);
  const std::vector<int64_t> two{2, 2}, none{0, 0}, one{1, 1};
  std::vector<c10::IValue> back{torch::rand({2, 8, 4, 4}, at::kCUDA), smaller, two, two, none, one, false, stack[1]};

  EXPECT_NE(message_of([&] { image_ops::all().max_pool_backward.callBoxed(&back); }).find("not what it has pooled"),
            std::string::npos);
}

TEST(ImageOpsOfCpus, AreWhatLibtorchHas) {
  for (const Case& c : {Case{{4, 8, 6, 6}, true}, Case{{4, 8, 6, 6}, false, at::kFloat, false, true}}) {
    Numbers numbers(c, at::kCPU);
    const std::vector<at::Tensor> expected = numbers.theirs(c), results = numbers.ours(c);

    for (size_t i = 0; i < results.size(); ++i) EXPECT_LT(error(results[i], expected[i]), 1e-5) << c << i;
  }
  const at::Tensor image = torch::rand({2, 3, 8, 8});
  auto stack = pooling(image, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false);

  image_ops::all().max_pool.callBoxed(&stack);

  EXPECT_EQ(stack[1].toTensor().scalar_type(), at::kLong);
}

}  // namespace muster::image_ops_test
