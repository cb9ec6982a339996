#include "muster/data/sources/element_buffer.h"

#include <gmock/gmock.h>
#include <malloc.h>
#include <torch/torch.h>

namespace muster {
namespace {

// Whatever allocator libtorch has: what the process holds of its own and of the kernel.
size_t bytes_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

Columns numbers(int64_t first, int64_t count) { return {torch::arange(first, first + count), torch::tensor(first)}; }

TEST(ElementBuffer, GivesEachElementOnceWhicheverIsTaken) {
  ElementBuffer buffer;
  const RecordFile file{"a", "line"};
  for (int64_t i = 0; i < 10'000; ++i) {
    Columns element = numbers(i, 3);
    element.emplace_back(Strings(std::to_string(i), {&file, i}));
    buffer.add(std::move(element));
  }

  std::vector<bool> seen(10'000);
  for (size_t turn = 0; buffer.size() > 0; ++turn) {
    const Columns element = buffer.take(turn * 7'919 % buffer.size());
    const auto first = element[1].tensor().item<int64_t>();
    EXPECT_TRUE(element[0].tensor().equal(torch::arange(first, first + 3)));
    EXPECT_EQ(element[2].strings()[0], std::to_string(first));
    EXPECT_EQ(element[2].strings().origin(0).number, first);
    EXPECT_FALSE(seen.at(static_cast<size_t>(first)));
    seen[static_cast<size_t>(first)] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 10'000);
}

TEST(ElementBuffer, KeepsElementsThatDoNotLookLikeTheFirst) {
  ElementBuffer buffer;
  buffer.add(numbers(0, 2));
  buffer.add(numbers(5, 2));
  buffer.add(numbers(7, 3));
  buffer.add({torch::zeros({4'000})});

  EXPECT_EQ(buffer.take(3)[0].sizes()[0], 4'000);
  EXPECT_EQ(buffer.take(0)[1].tensor().item<int64_t>(), 0);
  EXPECT_EQ(buffer.take(0)[1].tensor().item<int64_t>(), 7);
  EXPECT_EQ(buffer.take(0)[1].tensor().item<int64_t>(), 5);
  EXPECT_EQ(buffer.size(), 0u);
  buffer.add({torch::ones({2})});
  EXPECT_TRUE(buffer.take(0)[0].tensor().equal(torch::ones({2})));
}

TEST(ElementBuffer, TakesHalfAsMuchAgainAsTheBytesAtMost) {
  constexpr size_t kCount = 200'000;
  const Columns numbers{torch::tensor(int64_t{1})};
  const Columns rows{torch::arange(26)};
  const Columns records{Strings(std::string(200, 'x'))};
  const Columns lines{Strings(std::string(64, 'x'))};
  for (const auto& [element, bytes] : {std::pair(numbers, size_t{8}), std::pair(rows, size_t{208}),
                                       std::pair(records, size_t{200}), std::pair(lines, size_t{64})}) {
    const size_t before = bytes_in_use();
    ElementBuffer buffer;
    for (size_t i = 0; i < kCount; ++i) buffer.add(element);
    for (size_t i = 0; i < kCount; ++i) {
      buffer.take(i * 7'919 % kCount);
      buffer.add(element);
    }

    EXPECT_LE(bytes_in_use() - before, kCount * bytes * 3 / 2);
  }
}

TEST(ElementBuffer, KeepsTextsOfAllLengths) {
  ElementBuffer buffer;
  const RecordFile files[] = {{"a", "line"}, {"b", "line"}};
  auto text = [](int64_t number) {
    return std::string(static_cast<size_t>(number * number % 3'001), static_cast<char>('a' + number % 26));
  };
  int64_t added = 0;
  auto add = [&] {
    buffer.add({Strings(text(added), {&files[added % 2], added})});
    ++added;
  };
  for (int i = 0; i < 500; ++i) add();

  for (size_t turn = 0; turn < 5'000; ++turn) {
    const Columns element = buffer.take(turn * 7'919 % buffer.size());
    const RecordOrigin origin = element[0].strings().origin(0);
    EXPECT_EQ(element[0].strings()[0], text(origin.number));
    EXPECT_EQ(origin.file, &files[origin.number % 2]);
    add();
  }
}

}  // namespace
}  // namespace muster
