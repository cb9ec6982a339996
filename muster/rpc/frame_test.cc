#include "muster/rpc/frame.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/graph/dtype.h"
#include "muster/rpc/test_say.h"

namespace muster {
namespace {

Frame frame_of(std::vector<at::Tensor> tensors) {
  Frame frame;
  frame.envelope.set_header("header");
  frame.tensors = std::move(tensors);
  return frame;
}

std::string bytes_of(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

grpc::ByteBuffer message_of(const std::string& bytes, size_t slice_size = 7) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += slice_size) slices.emplace_back(bytes.substr(i, slice_size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(Frame, CarriesTensorsOfAllKindsAndSizes) {
  const std::vector<at::Tensor> tensors = {torch::randn({3, 4}),           torch::randn({200, 200}),
                                           torch::tensor(7, torch::kLong), at::Tensor(),
                                           torch::empty({0, 5}),           torch::randn({64, 64}, torch::kBFloat16).t(),
                                           torch::ones({3}, torch::kBool)};

  Frame got = decode(message_of(bytes_of(encode(frame_of(tensors)))));

  EXPECT_EQ(got.envelope.header(), "header");
  ASSERT_EQ(got.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(got.tensors[i].defined(), tensors[i].defined());
    if (!tensors[i].defined()) continue;
    EXPECT_EQ(got.tensors[i].scalar_type(), tensors[i].scalar_type());
    EXPECT_TRUE(torch::equal(got.tensors[i], tensors[i])) << i;
  }
}

TEST(Frame, PutsAVeryLargeTensorTogetherFromSlicesOfAllSizes) {
  const at::Tensor large = torch::randn({3'000'000}), small = torch::randn({10});
  const std::string bytes = bytes_of(encode(frame_of({small, large, small})));
  std::vector<grpc::Slice> slices;  // gRPC keeps the bytes of the shortest in the slice itself
  for (size_t i = 0, size = 1; i < bytes.size(); i += size, size = size * 2 % 999'983) {
    slices.emplace_back(bytes.substr(i, size));
  }

  const Frame got = decode(grpc::ByteBuffer(slices.data(), slices.size()));

  EXPECT_TRUE(torch::equal(got.tensors.at(0), small));
  EXPECT_TRUE(torch::equal(got.tensors.at(1), large));
  EXPECT_TRUE(torch::equal(got.tensors.at(2), small));
}

TEST(Frame, SendsALargeTensorFromItsOwnMemory) {
  at::Tensor large = torch::randn({256, 256});
  const void* memory = large.data_ptr();

  grpc::ByteBuffer message = encode(frame_of({large}));

  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(message.Dump(&slices).ok());
  EXPECT_EQ(slices.back().begin(), memory);
  EXPECT_EQ(large.use_count(), 2u) << "the message holds it";
  slices.clear();
  message.Clear();
  EXPECT_EQ(large.use_count(), 1u);
}

TEST(Frame, RefusesWhatIsCutShort) {
  const std::string bytes = bytes_of(encode(frame_of({torch::randn({100})})));

  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_THROW(decode(message_of(bytes.substr(0, size))), Error);
  EXPECT_THROW(decode(message_of(bytes + "x")), Error);
}

TEST(Frame, SurvivesEveryFlippedBit) {
  const std::string bytes = bytes_of(encode(frame_of({torch::randn({4}), torch::ones({2, 2}, torch::kLong)})));

  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    try {
      decode(message_of(damaged));
    } catch (const Error&) {
    }
  }
}

TEST(Frame, AsksForNoMemoryThatTheMessageCannotFill) {
  Frame frame = frame_of({});
  proto::TensorHeader& tensor = *frame.envelope.add_tensors();
  tensor.set_dtype(static_cast<int>(DType::kFloat));
  tensor.add_sizes(int64_t{1} << 40);

  try {
    decode(testing_support::message_with(frame.envelope, testing_support::kSaysHeavy));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kDataLoss) << error.what();
  }
}

TEST(Frame, IsRefusedIfItIsHeavierThanItSays) {
  const std::string bytes = bytes_of(encode(frame_of({torch::zeros({100'000})})));
  std::string light = bytes;
  light[3] = static_cast<char>(light[3] & ~(testing_support::kSaysHeavy >> 24));

  ASSERT_NE(light, bytes);
  EXPECT_NO_THROW(decode(message_of(bytes)));
  EXPECT_THROW(decode(message_of(light)), Error);
}

TEST(Frame, WeighsSomethingWhateverSizesItSays) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  Frame frame = frame_of({});
  proto::TensorHeader& tensor = *frame.envelope.add_tensors();
  tensor.set_dtype(static_cast<int>(DType::kFloat));
  for (int i = 0; i < 20; ++i) tensor.add_sizes(most);
  const auto weight = [&] {
    return weight_of(testing_support::message_with(frame.envelope, testing_support::kSaysHeavy));
  };

  EXPECT_GT(weight(), int64_t{1} << 40);
  tensor.add_sizes(0);
  EXPECT_GE(weight(), 1) << "it is empty";
  tensor.add_sizes(-most);
  EXPECT_GE(weight(), 1) << "there is none such";
}

TEST(Frame, KeepsAnErrorsCodeTextTaskAndDetail) {
  const Status status(StatusCode::kInternal, std::string(100'000, 'x') + "fantasia!", "/job:ps/task:1", "detail");

  EXPECT_EQ(from_proto(to_proto(status)), status);
}

}  // namespace
}  // namespace muster
