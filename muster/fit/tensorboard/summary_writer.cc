#include "muster/fit/tensorboard/summary_writer.h"

#include <algorithm>
#include <utility>

#include "muster/base/status.h"
#include "muster/fit/event.pb.h"
#include "muster/fit/tensorboard/event_file.h"
#include "muster/fit/tensorboard/histogram.h"
#include "muster/fit/tensorboard/png.h"
#include "muster/fit/tensorboard/program_graph.h"
#include "muster/runtime/memory/readable.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

using Metadata = proto::EventMetadata;
using TableColumn = proto::EventHparams::Column;

// A value that one of TensorBoard's plugins shows.
proto::Event event_of(const std::string& tag, int64_t step, const char* plugin, Metadata::DataClass data_class,
                      proto::EventTensor tensor) {
  proto::Event event;
  event.set_step(step);
  proto::EventSummary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(tag);
  value.mutable_metadata()->mutable_plugin()->set_name(plugin);
  value.mutable_metadata()->set_data_class(data_class);
  *value.mutable_tensor() = std::move(tensor);
  return event;
}

proto::EventTensor strings_of(std::vector<std::string> strings) {
  proto::EventTensor tensor;
  tensor.set_type(proto::EventTensor::STRING);
  tensor.mutable_shape()->add_dimension()->set_size(static_cast<int64_t>(strings.size()));
  for (std::string& text : strings) tensor.add_strings(std::move(text));
  return tensor;
}

// What TensorBoard knows of hyperparameters is in the metadata; a tensor must be there, so it is one without elements.
proto::Event hparams_event(const char* tag, const proto::EventHparams& content) {
  proto::EventTensor nothing;
  nothing.set_type(proto::EventTensor::FLOAT32);
  nothing.mutable_shape()->add_dimension()->set_size(0);
  proto::Event event = event_of(tag, 0, "hparams", Metadata::TENSOR, std::move(nothing));
  proto::EventSummary::Value& value = *event.mutable_summary()->mutable_value(0);
  value.mutable_metadata()->mutable_plugin()->set_content(content.SerializeAsString());
  return event;
}

proto::EventHparam hparam_of(const HparamValue& value) {
  struct Maker {
    proto::EventHparam hparam{};
    void operator()(double number) { hparam.set_number(number); }
    void operator()(bool truth) { hparam.set_truth(truth); }
    void operator()(const std::string& text) { hparam.set_text(text); }
  } maker;
  std::visit(maker, value.value());
  return maker.hparam;
}

TableColumn column_of(const HparamColumn& wanted) {
  constexpr TableColumn::Type kTypes[] = {TableColumn::NUMBER, TableColumn::TRUTH,
                                          TableColumn::TEXT};  // as HparamValue has them
  if (wanted.choices.empty()) throw invalid_argument("hyperparameter \"", wanted.name, "\": has no choices");
  const size_t type = wanted.choices[0].value().index();
  TableColumn column;
  column.set_name(wanted.name);
  column.set_type(kTypes[type]);
  for (const HparamValue& choice : wanted.choices) {
    if (choice.value().index() != type) {
      throw invalid_argument("hyperparameter \"", wanted.name,
                             "\": has choices of several types, expected numbers, truth values or texts");
    }
    *column.mutable_choices()->add_values() = hparam_of(choice);
  }
  return column;
}

void expect_elements(const char* what, const std::string& tag, const at::Tensor& tensor) {
  if (const std::string why = why_unreadable(tensor); !why.empty()) {
    throw invalid_argument(what, " \"", tag, "\": the tensor ", why);
  }
}

// uint8 [pictures, height, width, channels].
at::Tensor pictures_of(const std::string& tag, const at::Tensor& given) {
  const at::Tensor pixels = given.dim() == 3 ? given.unsqueeze(0) : given;
  const bool floating = pixels.is_floating_point();
  if (pixels.dim() != 4 || pixels.size(3) < 1 || pixels.size(3) > 4 || pixels.size(1) < 1 || pixels.size(2) < 1 ||
      !(floating || pixels.scalar_type() == at::kByte)) {
    throw invalid_argument("image \"", tag, "\": the tensor is ", spec_of(given).to_string(),
                           ", expected uint8 or floating-point numbers, [height, width, channels] or [pictures, "
                           "height, width, channels], with 1 to 4 channels");
  }
  if (!floating) return pixels;
  // 255.5 as in tf.image.convert_image_dtype: all 256 steps are of the same size, but for the last.
  return pixels.detach().to(at::kDouble).nan_to_num(0).clamp(0, 1).mul(255.5).to(at::kByte);
}

}  // namespace

SummaryWriter::SummaryWriter(const std::string& directory) : file_(std::make_unique<EventFile>(directory)) {}
SummaryWriter::~SummaryWriter() = default;
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;

void SummaryWriter::scalar(const std::string& tag, double value, int64_t step) { scalars({{tag, value}}, step); }

void SummaryWriter::scalars(const std::map<std::string, double>& values, int64_t step) {
  proto::Event event;
  event.set_step(step);
  for (const auto& [tag, number] : values) {
    proto::EventSummary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.set_simple_value(static_cast<float>(number));
  }
  file_->add(std::move(event));
}

void SummaryWriter::histogram(const std::string& tag, const at::Tensor& values, int64_t step) {
  expect_elements("histogram", tag, values);
  const std::vector<HistogramBucket> buckets = histogram_of(values);
  proto::EventTensor tensor;
  tensor.set_type(proto::EventTensor::FLOAT64);
  tensor.mutable_shape()->add_dimension()->set_size(static_cast<int64_t>(buckets.size()));
  tensor.mutable_shape()->add_dimension()->set_size(3);
  std::vector<double> numbers;
  for (const HistogramBucket& bucket : buckets) {
    numbers.insert(numbers.end(), {bucket.left, bucket.right, bucket.count});
  }
  tensor.set_content(numbers.data(), numbers.size() * sizeof(double));
  file_->add(event_of(tag, step, "histograms", Metadata::TENSOR, std::move(tensor)));
}

void SummaryWriter::image(const std::string& tag, const at::Tensor& pixels, int64_t step, int64_t most) {
  expect_elements("image", tag, pixels);
  const at::Tensor pictures = pictures_of(tag, pixels);
  std::vector<std::string> strings{str_cat(pictures.size(2)), str_cat(pictures.size(1))};  // width and height
  for (int64_t i = 0; i < std::min(pictures.size(0), most); ++i) strings.push_back(encode_png(pictures.select(0, i)));
  file_->add(event_of(tag, step, "images", Metadata::BLOB_SEQUENCE, strings_of(std::move(strings))));
}

void SummaryWriter::text(const std::string& tag, const std::string& markdown, int64_t step) {
  proto::EventTensor tensor = strings_of({markdown});
  tensor.mutable_shape()->clear_dimension();  // one text, not a table of texts
  file_->add(event_of(tag, step, "text", Metadata::TENSOR, std::move(tensor)));
}

void SummaryWriter::graph(const Program& program) {
  proto::Event event;
  event.set_graph_def(graph_of(program).SerializeAsString());
  file_->add(std::move(event));
}

void SummaryWriter::hparams(const Hparams& hparams, const std::map<std::string, double>& metrics) {
  begin_session(hparams);
  if (!metrics.empty()) scalars(metrics, 0);
  end_session();
}

void SummaryWriter::begin_session(const Hparams& hparams) {
  proto::EventHparams content;
  proto::EventHparams::Start& start = *content.mutable_start();
  for (const auto& [name, value] : hparams) (*start.mutable_hparams())[name] = hparam_of(value);
  start.set_time(EventFile::now());
  file_->add(hparams_event("_hparams_/session_start_info", content));
}

void SummaryWriter::end_session(bool success) {
  proto::EventHparams content;
  content.mutable_end()->set_status(success ? proto::EventHparams::End::SUCCESS : proto::EventHparams::End::FAILURE);
  content.mutable_end()->set_time(EventFile::now());
  file_->add(hparams_event("_hparams_/session_end_info", content));
}

void SummaryWriter::experiment(const std::vector<HparamColumn>& hparams, const std::vector<HparamMetric>& metrics) {
  proto::EventHparams content;
  proto::EventHparams::Experiment& experiment = *content.mutable_experiment();
  experiment.set_created(EventFile::now());
  for (const HparamColumn& column : hparams) *experiment.add_hparams() = column_of(column);
  for (const HparamMetric& metric : metrics) {
    proto::EventHparams::Metric& added = *experiment.add_metrics();
    added.mutable_name()->set_tag(metric.tag);
    added.mutable_name()->set_group(metric.group);
  }
  file_->add(hparams_event("_hparams_/experiment", content));
}

void SummaryWriter::flush() { file_->flush(); }

}  // namespace muster
