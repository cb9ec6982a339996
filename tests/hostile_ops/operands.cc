#include "operands.h"

#include <ATen/ATen.h>

#include <limits>
#include <sstream>

namespace muster::testing_support {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

bool has(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

bool names_indices(const std::string& name) {
  return has(name,
             {"ind", "offset", "target", "length", "pivots", "batch_sizes", "sorter", "repeats", "bag", "boundar"});
}

bool names_channels(const std::string& name) {
  return has(name, {"running", "weight", "bias", "save", "mean", "invstd", "rstd", "var", "scale", "zero_point"});
}

}  // namespace

Operands::Operands(const c10::FunctionSchema& schema, uint64_t seed, std::vector<std::vector<c10::IValue>> honest)
    : schema_(schema), random_(seed), honest_(std::move(honest)) {}

std::vector<c10::IValue> Operands::make() {
  static const std::vector<std::vector<int64_t>> kShapes = {{2, 3, 4, 4}, {2, 3, 4, 4}, {2, 3},    {4, 4},
                                                            {3, 4},       {5},          {2, 3, 5}, {1, 2, 3, 4, 4},
                                                            {2, 4, 4},    {},           {0},       {2, 0, 3}};
  static const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kFloat, at::kFloat,         at::kDouble,
                                                     at::kLong,  at::kBool,  at::kComplexFloat,  at::kBFloat16,
                                                     at::kInt,   at::kByte,  at::kComplexDouble, at::kFloat};
  usual_sizes_ = one_of(kShapes);
  usual_type_ = one_of(kTypes);
  std::vector<c10::IValue> stack;
  const bool from_honest = !honest_.empty() && chance(50);
  if (from_honest || (!accepted_.empty() && chance(75))) {
    stack = one_of(from_honest ? honest_ : accepted_);
    for (const c10::IValue& value : stack) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      usual_sizes_ = value.toTensor().sizes().vec();
      usual_type_ = value.toTensor().scalar_type();
      if (chance(50)) break;
    }
    for (int64_t changes = below(3); changes > 0 && !stack.empty(); --changes) {
      const int64_t position = below(static_cast<int64_t>(stack.size()));
      const c10::Argument& given = schema_.arguments()[position];
      stack[position] = chance(50) ? changed(stack[position], given) : argument(given);
    }
    return stack;
  }
  for (const c10::Argument& argument : schema_.arguments()) stack.push_back(this->argument(argument));
  return stack;
}

// Kept as they were before the call, which may have written to them: sizes matter more than values.
void Operands::accepted(std::vector<c10::IValue> stack) {
  if (accepted_.size() < 16) {
    accepted_.push_back(std::move(stack));
  } else {
    accepted_[below(16)] = std::move(stack);
  }
}

// The same with one size, one element or one number of it changed.
c10::IValue Operands::changed(const c10::IValue& value, const c10::Argument& given) {
  if (value.isInt() && given.real_type()->str().find("int") != 0 && given.real_type()->str().find("SymInt") != 0) {
    return value;  // stands for a type or an order; check() has looked at it
  }
  if (value.isInt()) return chance(50) ? value.toInt() + below(3) - 1 : integer();
  if (value.isIntList() && !value.toIntVector().empty()) {
    std::vector<int64_t> list = value.toIntVector();
    int64_t& element = list[below(static_cast<int64_t>(list.size()))];
    element = chance(50) ? element + below(3) - 1 : integer();
    return list;
  }
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0) return value;
  at::Tensor tensor = value.toTensor();
  const int64_t dim = below(tensor.dim());
  if (at::isIntegralType(tensor.scalar_type(), false) && tensor.numel() > 0 && chance(60)) {
    static const std::vector<int64_t> kHostile = {-1, 7, 100, 1'000'000, kHuge, kLeast, kMost, -kHuge};
    tensor = tensor.contiguous().clone();
    int64_t element = one_of(kHostile);
    if (tensor.scalar_type() != at::kLong) element = static_cast<int32_t>(element);
    tensor.view(-1)[below(tensor.numel())] = element;
    return tensor;
  }
  switch (below(4)) {
    case 0: return tensor.size(dim) > 0 ? tensor.narrow(dim, 0, tensor.size(dim) - 1).contiguous() : tensor;
    case 1: return tensor.size(dim) > 1 ? tensor.narrow(dim, 0, 1).contiguous() : tensor;
    case 2: return at::cat({tensor, tensor}, dim);
    default: return in_some_order(tensor.clone());
  }
}

c10::IValue Operands::argument(const c10::Argument& argument) {
  if (argument.default_value() && chance(40)) return *argument.default_value();
  return of_type(argument.real_type(), argument.name(), argument.N() ? *argument.N() : -1);
}

c10::IValue Operands::of_type(const c10::TypePtr& type, const std::string& name, int32_t length) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      if (chance(40)) return {};
      return of_type(type->castRaw<c10::OptionalType>()->getElementType(), name, length);
    case c10::TypeKind::TensorType: return tensor(name);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return integer();
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType: return real();
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return chance(50);
    case c10::TypeKind::NumberType:
      return chance(50) ? c10::IValue(at::Scalar(integer())) : c10::IValue(at::Scalar(real()));
    case c10::TypeKind::ScalarTypeType: return static_cast<int64_t>(usual_type_);
    case c10::TypeKind::MemoryFormatType: return below(3);
    case c10::TypeKind::LayoutType: return int64_t{0};
    case c10::TypeKind::DeviceObjType: return at::Device(at::kCPU);
    case c10::TypeKind::StringType: {
      static const std::vector<std::string> kWords = {
          "mean", "sum",  "none", "trunc", "floor",   "reflect", "constant", "right",     "left", "linear",
          "tanh", "prod", "amax", "U",     "reduced", "ij",      "i,i->i",   "ij,jk->ik", "gelsd"};
      return one_of(kWords);
    }
    case c10::TypeKind::ListType: break;
    default: return {};
  }
  const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  int64_t count = length >= 0 && chance(85) ? length : below(5);
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      if (has(name, {"size", "shape", "stride"}) && chance(50)) return sizes();
      std::vector<int64_t> numbers;
      for (; count > 0; --count) numbers.push_back(integer());
      return numbers;
    }
    case c10::TypeKind::FloatType: {
      std::vector<double> numbers;
      for (; count > 0; --count) numbers.push_back(real());
      return numbers;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> answers;
      for (; count > 0; --count) answers.push_back(chance(70));
      return answers;
    }
    case c10::TypeKind::NumberType: {
      c10::List<at::Scalar> numbers;
      for (; count > 0; --count) numbers.push_back(at::Scalar(real()));
      return numbers;
    }
    case c10::TypeKind::TensorType: {
      c10::List<at::Tensor> tensors;
      if (length < 0) count = chance(70) ? 2 : count;
      for (; count > 0; --count) tensors.push_back(tensor(name));
      return tensors;
    }
    case c10::TypeKind::OptionalType: {
      c10::List<std::optional<at::Tensor>> tensors;
      for (; count > 0; --count) tensors.push_back(chance(30) ? std::nullopt : std::optional(tensor(name)));
      return tensors;
    }
    default: return {};
  }
}

at::Tensor Operands::tensor(const std::string& name) {
  if (names_indices(name) && chance(80)) return indices(sizes());
  if (names_channels(name) && chance(60)) {
    const int64_t channels = usual_sizes_.size() > 1 ? usual_sizes_[1] : 3;
    return in_some_order(at::ones({chance(60) ? channels : below(channels + 2)}, usual_type_));
  }
  if (chance(5)) return indices(sizes());
  const at::ScalarType type =
      chance(90) ? usual_type_ : one_of(std::vector{at::kFloat, at::kLong, at::kBool, at::kDouble});
  at::Tensor made = at::empty(sizes(), type);
  if (type == at::kBool) {
    made.random_(0, 2);
  } else if (made.is_floating_point() || made.is_complex()) {
    at::Tensor values = at::randn(made.sizes(), at::kFloat);
    if (chance(10)) values = values * 1e30;
    if (chance(5)) values = values / 0.0;
    made.copy_(values);
  } else if (chance(80)) {
    made.random_(0, 4);
  } else {
    static const std::vector<int64_t> kNoQuotient = {kLeast, -1};
    int64_t value = chance(50) ? one_of(kNoQuotient) : integer();
    if (value == kLeast && type == at::kInt) value = std::numeric_limits<int32_t>::min();
    made.fill_(value);
  }
  return in_some_order(made);
}

at::Tensor Operands::indices(const std::vector<int64_t>& sizes) {
  at::Tensor made = at::empty(sizes, chance(85) ? at::kLong : at::kInt);
  made.random_(0, chance(60) ? 2 : 20);
  if (made.numel() == 0 || chance(50)) return made;
  static const std::vector<int64_t> kHostile = {-1,    -2,     1000,  1'000'000, int64_t{1} << 31,
                                                kHuge, kLeast, kMost, -kHuge};
  int64_t value = one_of(kHostile);
  if (made.scalar_type() == at::kInt) value = static_cast<int32_t>(value);
  made.view(-1)[below(made.numel())] = value;
  if (chance(20)) made.fill_(value);
  return made;
}

at::Tensor Operands::in_some_order(at::Tensor made) {
  switch (below(16)) {
    case 0: return made.dim() > 1 ? made.transpose(0, -1) : made;
    case 1: return made.dim() > 0 && made.size(0) > 0 ? made.narrow(0, 0, 1).expand_as(made) : made;
    case 2: return made.dim() > 0 && made.size(0) > 1 ? made.slice(0, 1) : made;
    case 3: return made.dim() == 4 ? made.contiguous(at::MemoryFormat::ChannelsLast) : made;
    default: return made;
  }
}

std::vector<int64_t> Operands::sizes() {
  std::vector<int64_t> sizes = usual_sizes_;
  if (chance(60)) return sizes;
  switch (below(9)) {
    case 0: return {};
    case 1: return {0};
    case 2: return {below(6)};
    case 3: return {below(5), below(5)};
    case 4: return {1 + below(3), 1 + below(4), below(6)};
    case 5:
      if (!sizes.empty()) sizes.erase(sizes.begin() + below(static_cast<int64_t>(sizes.size())));
      return sizes;
    case 6:
      if (!sizes.empty()) sizes[below(static_cast<int64_t>(sizes.size()))] = below(6);
      return sizes;
    case 7:
      if (!sizes.empty()) sizes[below(static_cast<int64_t>(sizes.size()))] = 1;
      return sizes;
    default: sizes.insert(sizes.begin(), 1 + below(2)); return sizes;
  }
}

int64_t Operands::integer() {
  if (chance(60)) return below(4);
  if (chance(50)) return -below(5);
  static const std::vector<int64_t> kOdd = {5,     7,      16,     100,   1000,     int64_t{1} << 31,
                                            kHuge, -kHuge, kLeast, kMost, kMost / 8};
  return one_of(kOdd);
}

double Operands::real() {
  static const std::vector<double> kReals = {0,
                                             1,
                                             0.5,
                                             0.1,
                                             2,
                                             -1,
                                             1e30,
                                             -1e30,
                                             1e-30,
                                             std::numeric_limits<double>::infinity(),
                                             std::numeric_limits<double>::quiet_NaN()};
  return chance(70) ? kReals[below(4)] : one_of(kReals);
}

namespace {

void describe(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "undefined";
    return;
  }
  out << tensor.scalar_type() << tensor.sizes();
  if (!tensor.is_contiguous()) out << " strides " << tensor.strides();
  const bool few = tensor.numel() > 0 && tensor.numel() <= 8;
  if (!few || (tensor.scalar_type() != at::kLong && tensor.scalar_type() != at::kInt)) return;
  out << " {";
  for (int64_t i = 0; i < tensor.numel(); ++i) out << (i ? " " : "") << tensor.reshape(-1)[i].item().toLong();
  out << "}";
}

}  // namespace

std::string describe_call(const std::string& op, const std::vector<c10::IValue>& stack) {
  std::ostringstream out;
  out << op << "(";
  for (size_t i = 0; i < stack.size(); ++i) {
    if (i > 0) out << ", ";
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      describe(out, value.toTensor());
    } else if (value.isTensorList()) {
      out << "{";
      for (const at::Tensor& tensor : value.toTensorVector()) describe(out << " ", tensor);
      out << " }";
    } else if (value.isOptionalTensorList()) {
      out << "{";
      for (const auto& element : value.toOptionalTensorVector()) describe(out << " ", element.value_or(at::Tensor()));
      out << " }";
    } else {
      out << value;
    }
  }
  out << ")";
  return out.str();
}

}  // namespace muster::testing_support
