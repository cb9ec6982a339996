#include "muster/runtime/ops/literals.h"

#include <ATen/core/List.h>

#include "muster/base/status.h"

namespace muster {
namespace {

at::Scalar number_of(const Argument& argument) {
  if (const auto* integer = std::get_if<int64_t>(&argument.value)) return *integer;
  if (const auto* real = std::get_if<double>(&argument.value)) return *real;
  if (const auto* boolean = std::get_if<bool>(&argument.value)) return *boolean;
  if (const auto* complex = std::get_if<std::complex<double>>(&argument.value)) {
    return c10::complex<double>(complex->real(), complex->imag());
  }
  throw invalid_argument("a list of numbers holds something else");
}

template <class T, class Convert>
c10::IValue list_of(const ArgumentList& list, const Convert& convert) {
  c10::List<T> result;
  result.reserve(list.size());
  for (const Argument& element : list) result.push_back(convert(number_of(element)));
  return result;
}

// A list without tensors, with the element type that the schema asks for.
c10::IValue plain_list(const ArgumentList& list, const c10::Type& element) {
  switch (element.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType: return list_of<int64_t>(list, [](const at::Scalar& s) { return s.toLong(); });
    case c10::TypeKind::FloatType: return list_of<double>(list, [](const at::Scalar& s) { return s.toDouble(); });
    case c10::TypeKind::BoolType: return list_of<bool>(list, [](const at::Scalar& s) { return s.toBool(); });
    case c10::TypeKind::NumberType: return list_of<at::Scalar>(list, [](const at::Scalar& s) { return s; });
    case c10::TypeKind::StringType: {
      c10::List<std::string> result;
      for (const Argument& text : list) result.push_back(std::get<std::string>(text.value));
      return result;
    }
    default: throw invalid_argument("lists of ", element.str(), " are not supported in programs");
  }
}

}  // namespace

c10::TypePtr strip_optional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
  return type;
}

ListKind list_kind(const c10::TypePtr& type) {
  c10::TypePtr list = strip_optional(type);
  if (list->kind() != c10::TypeKind::ListType) return ListKind::kPlain;
  const c10::TypePtr element = list->castRaw<c10::ListType>()->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return ListKind::kTensors;
  if (element->kind() != c10::TypeKind::OptionalType) return ListKind::kPlain;
  return strip_optional(element)->kind() == c10::TypeKind::TensorType ? ListKind::kOptionalTensors : ListKind::kPlain;
}

c10::IValue plain_argument(const Argument& argument, const c10::TypePtr& type, at::Device device) {
  struct Reader {
    const c10::TypePtr& type;
    at::Device device;
    // An op that makes a tensor, and is not told where, makes it on the CPU.
    c10::IValue operator()(None) const {
      const bool where = !device.is_cpu() && strip_optional(type)->kind() == c10::TypeKind::DeviceObjType;
      return where ? c10::IValue(device) : c10::IValue();
    }
    c10::IValue operator()(Undefined) const { return at::Tensor(); }
    c10::IValue operator()(ValueRef) const { return {}; }
    c10::IValue operator()(int64_t value) const {
      if (strip_optional(type)->kind() == c10::TypeKind::FloatType) return static_cast<double>(value);
      return value;
    }
    c10::IValue operator()(double value) const { return value; }
    c10::IValue operator()(bool value) const { return value; }
    c10::IValue operator()(std::complex<double> value) const {
      return c10::complex<double>(value.real(), value.imag());
    }
    c10::IValue operator()(const std::string& value) const { return value; }
    c10::IValue operator()(HereDevice) const { return device; }
    c10::IValue operator()(HereGenerator) const { return {}; }
    c10::IValue operator()(const ArgumentList& list) const {
      c10::TypePtr list_type = strip_optional(type);
      if (list_type->kind() != c10::TypeKind::ListType)
        throw invalid_argument("a list where ", type->str(), " belongs");
      return plain_list(list, *list_type->castRaw<c10::ListType>()->getElementType());
    }
  };
  return std::visit(Reader{type, device}, argument.value);
}

}  // namespace muster
