#include "muster/graph/elements.h"

#include <algorithm>
#include <charconv>

namespace muster {
namespace {

constexpr std::string_view kDetail = "elements";  // then, per element, how many numbers it is and those

bool takes_elements(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& instruction) { return program.op_of(instruction).name == kNext.name; }) ||
         std::any_of(program.bodies.begin(), program.bodies.end(), takes_elements);
}

bool is_input(const Program& program, ValueId value) {
  auto is_it = [&](const auto& input) { return input.value == value; };
  return std::any_of(program.arguments.begin(), program.arguments.end(), is_it) ||
         std::any_of(program.constants.begin(), program.constants.end(), is_it);
}

// What the value is a copy of; itself if it is none.
ValueId origin_of(const Program& program, ValueId value, size_t before) {
  for (size_t i = before; i-- > 0;) {
    const Instruction& instruction = program.instructions[i];
    if (program.op_of(instruction).name != kCopy.name || instruction.results[0][0] != value) continue;
    value = std::get<ValueRef>(instruction.arguments[0].value).id;
  }
  return value;
}

}  // namespace

std::vector<int64_t> numbers_of(const ElementSpec& element) {
  std::vector<int64_t> numbers;
  for (const TensorSpec& spec : element) {
    numbers.push_back(static_cast<int64_t>(spec.dtype));
    numbers.push_back(static_cast<int64_t>(spec.sizes.size()));
    numbers.insert(numbers.end(), spec.sizes.begin(), spec.sizes.end());
  }
  return numbers;
}

ElementSpec element_from(std::span<const int64_t> numbers) {
  ElementSpec element;
  size_t next = 0;
  auto take = [&] {
    if (next == numbers.size()) throw invalid_argument("the description of an element ends in the middle");
    return numbers[next++];
  };
  while (next < numbers.size()) {
    const auto dtype = dtype_from_number(take());
    if (!dtype) throw invalid_argument("the description of an element names no type");
    TensorSpec& spec = element.emplace_back(TensorSpec{.dtype = *dtype});
    const int64_t sizes = take();
    for (int64_t i = 0; i < sizes; ++i) {
      spec.sizes.push_back(take());
      if (spec.sizes.back() < 0) throw invalid_argument("the description of an element has a size below 0");
    }
  }
  return element;
}

ElementSpec element_of(const Instruction& next) {
  std::vector<int64_t> numbers;
  for (const Argument& argument : std::get<ArgumentList>(next.arguments[1].value)) {
    const auto* number = std::get_if<int64_t>(&argument.value);
    if (number == nullptr) throw invalid_argument("the description of an element is not all numbers");
    numbers.push_back(*number);
  }
  return element_from(numbers);
}

std::string describe_elements(const ElementSpecs& elements) {
  std::string text;
  for (const ElementSpec& element : elements) {
    str_append(text, text.empty() ? "" : ", ", "(");
    for (size_t i = 0; i < element.size(); ++i) str_append(text, i == 0 ? "" : ", ", element[i].to_string());
    text += ")";
  }
  return text;
}

std::vector<FirstElement> first_elements(const Program& program) {
  std::vector<FirstElement> first;
  if (!program.task.empty()) return first;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    for (int32_t body : instruction.bodies) {
      if (takes_elements(program.bodies[body])) return first;
    }
    if (program.op_of(instruction).name != kNext.name) continue;
    const ValueId number = origin_of(program, std::get<ValueRef>(instruction.arguments[0].value).id, i);
    if (!is_input(program, number)) return first;
    first.push_back({i, number});
  }
  return first;
}

ElementSpecs first_element_specs(const Program& program) {
  ElementSpecs specs;
  for (const FirstElement& element : first_elements(program)) {
    specs.push_back(element_of(program.instructions[element.instruction]));
  }
  return specs;
}

Error other_elements(const ElementSpecs& found, const ElementSpecs& expected) {
  std::string detail(kDetail);
  for (const ElementSpec& element : found) {
    const std::vector<int64_t> numbers = numbers_of(element);
    str_append(detail, " ", numbers.size());
    for (int64_t number : numbers) str_append(detail, " ", number);
  }
  return Error(Status(StatusCode::kInvalidArgument,
                      str_cat("the next elements are ", describe_elements(found), ", but the function was traced for ",
                              describe_elements(expected)),
                      {}, std::move(detail)));
}

std::optional<ElementSpecs> other_elements_of(const Status& status) {
  std::string_view rest = status.detail();
  if (!rest.starts_with(kDetail)) return std::nullopt;
  rest.remove_prefix(kDetail.size());
  std::vector<int64_t> numbers;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), numbers.emplace_back());
    if (error != std::errc()) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  }
  ElementSpecs elements;
  for (size_t next = 0; next < numbers.size();) {
    const auto count = static_cast<size_t>(numbers[next++]);
    if (count > numbers.size() - next) return std::nullopt;
    try {
      elements.push_back(element_from(std::span(numbers).subspan(next, count)));
    } catch (const Error&) {
      return std::nullopt;
    }
    next += count;
  }
  return elements;
}

}  // namespace muster
