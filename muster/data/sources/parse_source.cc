// The step that turns records into what is in them, and the one before it that leaves out those in which something is
// wrong. They are two, since a batch is parsed at once, but has as many rows as was asked for.
#include "muster/base/status.h"
#include "muster/data/sources/left_out.h"
#include "muster/data/sources/source.h"
#include "muster/data/sources/stacking.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr int64_t kCheckedAtOnce = 64;    // records
constexpr int kWrongOnesFoundAtOnce = 8;  // by parsing all others again

const Strings& records_of(const Columns& element) {
  if (element.size() != 1 || !element[0].holds_strings()) {
    throw invalid_argument("parse: an element is ", describe(element), ", expected one string: a record of a file");
  }
  return element[0].strings();
}

Strings some_of(const Strings& records, const std::vector<size_t>& numbers) {
  Strings some;
  for (const size_t i : numbers) some.append_all(Strings(std::string(records[i]), records.origin(i)));
  some.shape({static_cast<int64_t>(numbers.size())});
  return some;
}

// Whether one record can be parsed.
bool is_good(const RecordParser& parser, const Strings& records, size_t number, LeftOut& left_out) {
  std::optional<size_t> wrong;
  try {
    parser.parse(Strings(std::string(records[number]), records.origin(number)), &wrong);
    return true;
  } catch (const Error& error) {
    if (!wrong) throw;
    left_out.add(error);
    return false;
  }
}

// Those of a batch that can be parsed. It is parsed without the one that was wrong, as long as these are few.
Strings good_ones(const RecordParser& parser, const Strings& records, LeftOut& left_out) {
  std::vector<size_t> left(records.count());
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (int tries = 0; tries < kWrongOnesFoundAtOnce && !left.empty(); ++tries) {
    std::optional<size_t> wrong;
    Strings some = left.size() == records.count() && records.sizes().size() == 1 ? records : some_of(records, left);
    try {
      parser.parse(some, &wrong);
      return some;
    } catch (const Error& error) {
      if (!wrong) throw;  // it is not for want of one of them
      left_out.add(error);
      left.erase(left.begin() + static_cast<ptrdiff_t>(*wrong));
    }
  }
  std::erase_if(left, [&](size_t i) { return !is_good(parser, records, i, left_out); });
  return some_of(records, left);
}

// Takes batches of records: what is wrong in them is left out, and batches of nothing else.
class GoodBatchesSource : public Source {
 public:
  GoodBatchesSource(std::shared_ptr<const RecordParser> parser, std::unique_ptr<Source> input, bool quiet)
      : parser_(std::move(parser)), input_(std::move(input)), left_out_("parsed", quiet) {}
  std::optional<Columns> next() override {
    while (std::optional<Columns> element = input_->next()) {
      const Strings& records = records_of(*element);
      Strings good = good_ones(*parser_, records, left_out_);
      if (good.count() == 0 || good.sizes()[0] == 0) continue;
      if (good.count() == records.count()) return element;
      Columns rest;
      rest.emplace_back(std::move(good));
      return rest;
    }
    return std::nullopt;
  }
  void restart() override { input_->restart(); }
  int64_t drained() const override { return input_->drained(); }

 private:
  const std::shared_ptr<const RecordParser> parser_;
  const std::unique_ptr<Source> input_;
  LeftOut left_out_;
};

// Whether what a step takes is certain to be one record at a time.
bool takes_single_records(const DatasetNode& parse) {
  const DatasetNode* node = &parse.input();
  while (passes_on(node->op())) node = &node->input();
  return std::holds_alternative<FilesOp>(node->op());
}

Columns parse_records(const RecordParser& parser, const Columns& element) {
  PlainTensors plain;
  const Strings& records = records_of(element);
  if (!records.sizes().empty()) return parser.parse(records);
  Columns row = parser.parse(records);
  for (size_t i = 0; i < row.size(); ++i) {
    if (parser.has_rows(i)) row[i] = row_of(row[i], 0);
  }
  return row;
}

}  // namespace

std::unique_ptr<Source> open_good_records(const DatasetNode& node, std::unique_ptr<Source> input,
                                          const OpenContext& context) {
  const auto& op = std::get<ParseOp>(node.op());
  if (!op.ignore_errors) return input;
  if (!takes_single_records(node)) {
    return std::make_unique<GoodBatchesSource>(op.parser, std::move(input), context.example);
  }
  auto groups = open_op(BatchOp{.size = kCheckedAtOnce, .drop_remainder = false}, std::move(input), context);
  auto check = [parser = op.parser,
                left_out = std::make_shared<LeftOut>("parsed", context.example)](const Columns& group) {
    Columns good;
    good.emplace_back(good_ones(*parser, records_of(group), *left_out));
    return good;
  };
  return open_op(UnbatchOp{}, open_change(std::move(check), op.parallel, std::move(groups), context), context);
}

std::unique_ptr<Source> open_op(const ParseOp& op, std::unique_ptr<Source> input, const OpenContext& context) {
  return open_change([parser = op.parser](const Columns& element) { return parse_records(*parser, element); },
                     op.parallel, std::move(input), context);
}

}  // namespace muster
