// What the description of a dataset says about the shapes of its elements.
#include <algorithm>

#include "muster/data/dataset_node.h"

namespace muster {
namespace {

bool gives_one_size(const DecodeImagesOp& op) {
  if (op.options.decode.channels == 0) return false;
  return std::ranges::any_of(op.options.steps, [](const ImageStep& step) {
    return step.kind == ImageStep::Kind::kResize || step.kind == ImageStep::Kind::kCenterCrop ||
           step.kind == ImageStep::Kind::kRandomCrop || step.kind == ImageStep::Kind::kRandomResizedCrop;
  });
}

bool gives_one_size(const ParseOp& op) {
  const auto* features = std::get_if<std::vector<ExampleFeature>>(&op.what);
  return features == nullptr || std::ranges::all_of(*features, [](const ExampleFeature& feature) {
           return feature.kind == ExampleFeature::Kind::kFixed && !feature.sequence;
         });
}

ElementShapes after_batch(ElementShapes input, bool drop_remainder) {
  if (input != ElementShapes::kAlike) return ElementShapes::kAny;
  return drop_remainder ? ElementShapes::kAlike : ElementShapes::kLastBatchSmaller;
}

}  // namespace

ElementShapes shapes_of(const DatasetNode& node) {
  const DatasetOp& op = node.op();
  if (std::holds_alternative<GeneratorOp>(op) || std::holds_alternative<RegisteredOp>(op) ||
      std::holds_alternative<NativeMapOp>(op)) {
    return ElementShapes::kAny;
  }
  ElementShapes input = ElementShapes::kAlike;
  for (const auto& each : node.inputs()) input = std::max(input, shapes_of(*each));
  if (const auto* batch = std::get_if<BatchOp>(&op)) return after_batch(input, batch->drop_remainder);
  if (const auto* batch = std::get_if<PaddedBatchOp>(&op)) return after_batch(input, batch->drop_remainder);
  if (const auto* window = std::get_if<WindowOp>(&op)) {
    return window->drop_remainder ? input : ElementShapes::kAny;
  }
  if (const auto* images = std::get_if<DecodeImagesOp>(&op)) {
    return gives_one_size(*images) ? input : ElementShapes::kAny;
  }
  if (const auto* parse = std::get_if<ParseOp>(&op)) return gives_one_size(*parse) ? input : ElementShapes::kAny;
  if (std::holds_alternative<BucketOp>(op)) return ElementShapes::kAny;
  if (const auto* preprocess = std::get_if<PreprocessOp>(&op)) {
    return preprocess->how->elementwise() ? input : ElementShapes::kAny;
  }
  if (std::holds_alternative<ConcatenateOp>(op) || std::holds_alternative<SampleOp>(op)) {
    return node.inputs().size() == 1 ? input : ElementShapes::kAny;
  }
  if (std::holds_alternative<UnbatchOp>(op)) {
    return input == ElementShapes::kAny ? ElementShapes::kAny : ElementShapes::kAlike;
  }
  return input;
}

}  // namespace muster
