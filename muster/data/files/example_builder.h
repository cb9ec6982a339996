// Makes the bytes of tf.train.Example and SequenceExample, without protobuf and without TensorFlow.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace muster {

// One Example: ExampleBuilder().floats("d", dense).int64s("c", {3, 17}).bytes("image", png).serialize()
// Of two features with one name the later one stays. A value; not thread-safe.
class ExampleBuilder {
 public:
  ExampleBuilder& floats(std::string_view name, std::span<const float> values);
  ExampleBuilder& floats(std::string_view name, std::initializer_list<float> values);
  ExampleBuilder& int64s(std::string_view name, std::span<const int64_t> values);
  ExampleBuilder& int64s(std::string_view name, std::initializer_list<int64_t> values);
  ExampleBuilder& strings(std::string_view name, std::span<const std::string> values);
  ExampleBuilder& strings(std::string_view name, std::initializer_list<std::string_view> values);
  ExampleBuilder& bytes(std::string_view name, std::string_view value);  // a list of one

  // The names are sorted: equal examples have equal bytes.
  // Throws Error{kInvalidArgument} for more than the 2 GiB that protobuf allows.
  std::string serialize() const;

 private:
  friend class SequenceExampleBuilder;
  std::map<std::string, std::string, std::less<>> features_;  // serialized
};

// One SequenceExample. Each call adds one step to the feature list of that name:
// SequenceExampleBuilder(ExampleBuilder().int64s("user", {7})).floats("at", {1, 2}).floats("at", {3, 4}).serialize()
// A value; not thread-safe.
class SequenceExampleBuilder {
 public:
  explicit SequenceExampleBuilder(ExampleBuilder context = {}) : context_(std::move(context)) {}

  SequenceExampleBuilder& floats(std::string_view name, std::span<const float> step);
  SequenceExampleBuilder& floats(std::string_view name, std::initializer_list<float> step);
  SequenceExampleBuilder& int64s(std::string_view name, std::span<const int64_t> step);
  SequenceExampleBuilder& int64s(std::string_view name, std::initializer_list<int64_t> step);
  SequenceExampleBuilder& strings(std::string_view name, std::span<const std::string> step);
  SequenceExampleBuilder& strings(std::string_view name, std::initializer_list<std::string_view> step);
  SequenceExampleBuilder& bytes(std::string_view name, std::string_view step);
  // Has the list without steps, unless it already has some.
  SequenceExampleBuilder& list(std::string_view name);

  std::string serialize() const;  // as ExampleBuilder's

 private:
  ExampleBuilder context_;
  std::map<std::string, std::string, std::less<>> lists_;  // serialized
};

}  // namespace muster
