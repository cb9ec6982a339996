#include "muster/fit/tensorboard/summary_writer.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"
#include "muster/data/images/image_decoder.h"
#include "muster/fit/event.pb.h"
#include "muster/fit/tensorboard/png.h"
#include "muster/fit/test_events.h"
#include "muster/runtime/memory/tensors.h"

namespace muster::summary_writer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing_support::ScopedDirectory;
using Value = proto::EventSummary::Value;

class SummaryWriterTest : public ::testing::Test {
 protected:
  std::vector<proto::Event> events() {
    writer_.flush();
    return testing_support::events_below(directory_.path());
  }
  Value only_value() {
    const std::vector<proto::Event> all = events();
    EXPECT_EQ(all.size(), 1U);
    return all.at(0).summary().value(0);
  }
  static std::vector<int64_t> shape_of(const Value& value) {
    std::vector<int64_t> sizes;
    for (const auto& dimension : value.tensor().shape().dimension()) sizes.push_back(dimension.size());
    return sizes;
  }
  static proto::EventHparams hparams_of(const proto::Event& event) {
    proto::EventHparams content;
    EXPECT_TRUE(content.ParseFromString(event.summary().value(0).metadata().plugin().content()));
    return content;
  }
  template <class Act>
  static std::string complaint_of(const Act& act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  const ScopedDirectory directory_;
  SummaryWriter writer_{directory_.path()};
};

TEST_F(SummaryWriterTest, WritesScalarsOfAStepTogether) {
  writer_.scalars({{"loss", 0.5}, {"accuracy", 0.75}}, 7);
  writer_.scalar("loss", 0.25, 8);

  const std::vector<proto::Event> all = events();

  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].step(), 7);
  EXPECT_EQ(all[0].summary().value(0).tag(), "accuracy");
  EXPECT_EQ(all[0].summary().value(1).simple_value(), 0.5F);
  EXPECT_EQ(all[1].summary().value(0).simple_value(), 0.25F);
}

TEST_F(SummaryWriterTest, WritesAHistogramAsATableOfBuckets) {
  writer_.histogram("weights", torch::tensor({0.0, 1.0, 3.0}), 2);

  const Value value = only_value();

  EXPECT_EQ(value.metadata().plugin().name(), "histograms");
  EXPECT_EQ(value.tensor().type(), proto::EventTensor::FLOAT64);
  EXPECT_THAT(shape_of(value), ElementsAre(30, 3));
  double last[3];
  ASSERT_EQ(value.tensor().content().size(), 30 * sizeof last);
  std::memcpy(last, value.tensor().content().data() + 29 * sizeof last, sizeof last);
  EXPECT_THAT(last, ElementsAre(::testing::DoubleNear(2.9, 1e-12), 3, 1));
}

TEST_F(SummaryWriterTest, WritesPicturesAsPngFiles) {
  const at::Tensor pixels = torch::randint(256, {5, 6, 7, 3}, torch::kByte);

  writer_.image("digits", pixels, 0, /*most=*/2);

  const Value value = only_value();
  EXPECT_EQ(value.metadata().plugin().name(), "images");
  EXPECT_EQ(value.metadata().data_class(), proto::EventMetadata::BLOB_SEQUENCE);
  EXPECT_THAT(shape_of(value), ElementsAre(4));
  EXPECT_EQ(value.tensor().strings(0), "7") << "the width";
  EXPECT_EQ(value.tensor().strings(1), "6");
  EXPECT_EQ(value.tensor().strings(3), encode_png(pixels[1]));
}

TEST_F(SummaryWriterTest, WritesEveryKindOfPictureSoThatItIsReadAsItWas) {
  for (const int64_t channels : {1, 2, 3, 4}) {
    const at::Tensor pixels = torch::randint(256, {9, 5, channels}, torch::kByte);
    const std::string png = encode_png(pixels);
    try {
      // A channel with alpha is not among those that the decoder gives: it has grey alone.
      const at::Tensor read = decode_image(png, {.channels = channels == 2 ? 1 : channels});
      EXPECT_TRUE(torch::equal(read, channels == 2 ? pixels.narrow(2, 0, 1) : pixels)) << channels;
    } catch (const Error& error) {
      if (error.code() != StatusCode::kFailedPrecondition) throw;
      GTEST_SKIP() << "this build reads no pictures";
    }
  }
}

TEST_F(SummaryWriterTest, TakesNumbersFromZeroToOneForPixels) {
  writer_.image("grey", torch::tensor({-1.0, 0.0, 0.5, 1.0, 2.0, std::nan("")}).reshape({1, 6, 1}), 0);

  const at::Tensor bytes = torch::tensor({0, 0, 127, 255, 255, 0}, torch::kByte).reshape({1, 6, 1});
  EXPECT_EQ(only_value().tensor().strings(2), encode_png(bytes));
}

TEST_F(SummaryWriterTest, RefusesWhatIsNoPicture) {
  for (const at::Tensor& wrong : {torch::ones({4, 4}), torch::ones({4, 4, 5}), torch::ones({4, 0, 3}),
                                  torch::ones({4, 4, 3}, torch::kInt), torch::ones({1, 1, 4, 4, 3})}) {
    EXPECT_THAT(complaint_of([&] { writer_.image("wrong", wrong, 0); }),
                HasSubstr("image \"wrong\": the tensor is " + spec_of(wrong).to_string()));
  }
}

TEST_F(SummaryWriterTest, RefusesTensorsWhoseElementsNobodyCanRead) {
  const at::Tensor undefined, sparse = torch::ones({4, 4, 3}).to_sparse();

  EXPECT_THAT(complaint_of([&] { writer_.histogram("wrong", undefined, 0); }),
              HasSubstr("histogram \"wrong\": the tensor is undefined"));
  EXPECT_THAT(complaint_of([&] { writer_.histogram("wrong", sparse, 0); }), HasSubstr("the tensor is sparse"));
  EXPECT_THAT(complaint_of([&] { writer_.image("wrong", undefined, 0); }),
              HasSubstr("image \"wrong\": the tensor is undefined"));
  EXPECT_THAT(complaint_of([&] { writer_.image("wrong", sparse, 0); }), HasSubstr("the tensor is sparse"));
}

TEST_F(SummaryWriterTest, WritesTextAsOneString) {
  writer_.text("notes", "# Größe", 3);

  const Value value = only_value();

  EXPECT_EQ(value.metadata().plugin().name(), "text");
  EXPECT_THAT(shape_of(value), ::testing::IsEmpty());
  EXPECT_EQ(value.tensor().strings(0), "# Größe");
}

TEST_F(SummaryWriterTest, WritesTheGraphOfAFunction) {
  auto twice = function([](const at::Tensor& x) { return x * 2; });

  writer_.graph(twice, torch::ones({2}));

  proto::EventGraph graph;
  ASSERT_TRUE(graph.ParseFromString(events().at(0).graph_def()));
  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) names.push_back(node.name());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"arguments/0", "mul", "outputs/0"}));
}

TEST_F(SummaryWriterTest, WritesASessionOfHyperparameters) {
  writer_.hparams({{"learning_rate", 0.5}, {"units", 16}, {"augment", true}, {"optimizer", "adam"}},
                  {{"accuracy", 0.75}});

  const std::vector<proto::Event> all = events();

  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].summary().value(0).tag(), "_hparams_/session_start_info");
  const auto hparams = hparams_of(all[0]).start().hparams();
  EXPECT_EQ(hparams.at("learning_rate").number(), 0.5);
  EXPECT_EQ(hparams.at("units").number(), 16);
  EXPECT_TRUE(hparams.at("augment").truth());
  EXPECT_EQ(hparams.at("optimizer").text(), "adam");
  EXPECT_EQ(all[1].summary().value(0).simple_value(), 0.75F);
  EXPECT_EQ(hparams_of(all[2]).end().status(), proto::EventHparams::End::SUCCESS);
}

TEST_F(SummaryWriterTest, SaysWhichColumnsAnExperimentHas) {
  writer_.experiment({{"units", {16, 32}}, {"optimizer", {"sgd"}}}, {{.tag = "epoch_loss", .group = "validation"}});

  const proto::EventHparams::Experiment experiment = hparams_of(events().at(0)).experiment();

  EXPECT_EQ(experiment.hparams(0).type(), proto::EventHparams::Column::NUMBER);
  EXPECT_EQ(experiment.hparams(0).choices().values(1).number(), 32);
  EXPECT_EQ(experiment.hparams(1).type(), proto::EventHparams::Column::TEXT);
  EXPECT_EQ(experiment.metrics(0).name().group(), "validation");
  EXPECT_THAT(complaint_of([&] { writer_.experiment({{"units", {}}}, {}); }), HasSubstr("\"units\": has no choices"));
  EXPECT_THAT(complaint_of([&] { writer_.experiment({{"units", {16, "many"}}}, {}); }), HasSubstr("several types"));
}

}  // namespace
}  // namespace muster::summary_writer_test
