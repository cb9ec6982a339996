#include <absl/strings/ascii.h>

#include <algorithm>
#include <array>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/layer_state.h"
#include "muster/data/preprocessing/token_index.h"

namespace muster {
namespace {

constexpr std::string_view kTextVectorization = "text_vectorization";

const std::vector<std::string_view>& standardize_names() {
  static const std::vector<std::string_view> names{"lower_and_strip_punctuation", "lower", "strip_punctuation", "none"};
  return names;
}

const std::vector<std::string_view>& split_names() {
  static const std::vector<std::string_view> names{"whitespace", "character", "none"};
  return names;
}

// How many bytes at the beginning are a character of UTF-8. What is none counts as far as it could have become one,
// at least one byte, as Unicode recommends and ICU, which TensorFlow uses, does.
struct CharacterPrefix {
  size_t bytes;
  bool valid;
};
CharacterPrefix first_character(std::string_view text) {
  const auto byte = [&](size_t place) { return static_cast<unsigned char>(text[place]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    // Longer forms than needed, surrogates and numbers beyond the last end at the second byte.
    const unsigned low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (i == text.size() || byte(i) < low || byte(i) > high) return {i, false};
  }
  return {length, true};
}

// Cuts texts into tokens. Keeps the memory for it from text to text, so one is for one call.
class TextCutter {
 public:
  explicit TextCutter(const TextVectorizationOptions& options) : options_(options) {
    const bool lowers =
        options.standardize == Standardize::kLowerAndStripPunctuation || options.standardize == Standardize::kLower;
    strips_ = options.standardize == Standardize::kLowerAndStripPunctuation ||
              options.standardize == Standardize::kStripPunctuation;
    for (size_t i = 0; i < standard_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(i);
      standard_[i] = lowers ? absl::ascii_tolower(byte) : static_cast<char>(byte);
    }
  }

  // Begins a sequence of tokens. `longest` is how long the texts of it are together.
  void begin(size_t longest) {
    tokens_.clear();
    text_.clear();
    text_.reserve(longest);  // tokens are views into it, so it must not move
  }

  void add(std::string_view text) {
    const size_t start = text_.size();
    for (const char each : text) {
      const auto byte = static_cast<unsigned char>(each);
      if (!strips_ || !absl::ascii_ispunct(byte)) text_.push_back(standard_[byte]);
    }
    const std::string_view rest = std::string_view(text_).substr(start);
    if (options_.split == Split::kWhitespace) {
      split_at_spaces(rest);
    } else if (options_.split == Split::kCharacter) {
      split_characters(rest);
    } else {
      tokens_.push_back(rest);
    }
  }

  // Calls use(token) for each token, or each n-gram, until it returns false.
  template <class Use>
  void for_each(const Use& use) {
    if (options_.ngrams == 0) {
      for (const std::string_view token : tokens_) {
        if (!use(token)) return;
      }
      return;
    }
    const size_t most = std::min(static_cast<size_t>(options_.ngrams), tokens_.size());
    for (size_t width = 1; width <= most; ++width) {
      for (size_t first = 0; first + width <= tokens_.size(); ++first) {
        joined_.assign(tokens_[first]);
        for (size_t i = 1; i < width; ++i) joined_.append(1, ' ').append(tokens_[first + i]);
        if (!use(std::string_view(joined_))) return;
      }
    }
  }

 private:
  void split_at_spaces(std::string_view text) {
    const auto is_space = [](char each) { return absl::ascii_isspace(static_cast<unsigned char>(each)); };
    auto next = text.begin();
    while (true) {
      next = std::find_if_not(next, text.end(), is_space);
      if (next == text.end()) return;
      const auto end = std::find_if(next, text.end(), is_space);
      tokens_.emplace_back(&*next, static_cast<size_t>(end - next));
      next = end;
    }
  }

  void split_characters(std::string_view text) {
    while (!text.empty()) {
      const auto [bytes, valid] = first_character(text);
      tokens_.push_back(valid ? text.substr(0, bytes) : std::string_view("\xef\xbf\xbd"));
      text.remove_prefix(bytes);
    }
  }

  const TextVectorizationOptions& options_;
  bool strips_ = false;
  std::array<char, 256> standard_{};
  std::string text_, joined_;
  std::vector<std::string_view> tokens_;
};

// The shape of the texts in a column: so many sequences, each of so many strings.
struct TextShape {
  std::vector<int64_t> sequences;
  size_t strings_each = 1;

  TextShape(const Strings& strings, Split split) : sequences(strings.sizes().vec()) {
    if (split == Split::kNone) {
      if (sequences.empty()) return;
      strings_each = static_cast<size_t>(sequences.back());
      sequences.pop_back();
    } else if (sequences.size() > 1) {
      if (sequences.back() != 1) {
        throw invalid_argument(kTextVectorization, ": got ", words_for(strings),
                               ", expected one dimension or a last one of 1 to split texts");
      }
      sequences.pop_back();
    }
  }
  size_t count() const {
    size_t count = 1;
    for (const int64_t size : sequences) count *= static_cast<size_t>(size);
    return count;
  }
};

// Calls use(number, cutter) for each sequence of a column, with its tokens in the cutter.
template <class Use>
void for_each_sequence(const Strings& strings, const TextShape& shape, const TextVectorizationOptions& options,
                       const Use& use) {
  TextCutter cutter(options);
  const size_t count = shape.count();
  for (size_t number = 0, next = 0; number < count; ++number) {
    size_t longest = 0;
    for (size_t i = 0; i < shape.strings_each; ++i) longest += strings[next + i].size();
    cutter.begin(longest);
    for (size_t i = 0; i < shape.strings_each; ++i) cutter.add(strings[next++]);
    use(number, cutter);
  }
}

LookupSettings<std::string> text_settings(const TextVectorizationOptions& options) {
  return {.mask_token = "", .oov_token = "[UNK]", .output_mode = options.output_mode, .max_tokens = options.max_tokens};
}

// Those of the options that a vocabulary is not about.
void check_text_options(const TextVectorizationOptions& options) {
  check_option(kTextVectorization, "ngrams", options.ngrams, 0, kMostCategories);
  if (static_cast<size_t>(options.standardize) >= standardize_names().size()) {
    throw invalid_argument(kTextVectorization, ": standardize ", static_cast<int>(options.standardize),
                           " is none of Keras'");
  }
  if (static_cast<size_t>(options.split) >= split_names().size()) {
    throw invalid_argument(kTextVectorization, ": split ", static_cast<int>(options.split), " is none of Keras'");
  }
  if (options.output_mode == OutputMode::kOneHot) {
    throw invalid_argument(kTextVectorization,
                           ": output_mode \"one_hot\", expected \"int\", \"multi_hot\" or \"count\"");
  }
  if (!options.output_sequence_length) return;
  check_option(kTextVectorization, "output_sequence_length", *options.output_sequence_length, 1, kMostCategories);
  if (options.output_mode != OutputMode::kInt) {
    throw invalid_argument(kTextVectorization, ": output_sequence_length is for output_mode \"int\", not \"",
                           name_of(options.output_mode), "\"");
  }
}

class TextVectorization final : public Preprocessing {
 public:
  TextVectorization(const Column& vocabulary, SpecialTokens special, TextVectorizationOptions options)
      : options_(std::move(options)), index_(kTextVectorization, vocabulary, special, text_settings(options_)) {
    check_text_options(options_);
    options_.vocabulary = {};  // the index has it
  }

  Column operator()(const Column& in) const override {
    const Strings& strings = strings_in(kTextVectorization, in);
    const TextShape shape(strings, options_.split);
    return options_.output_mode == OutputMode::kInt ? sequences(strings, shape) : rows(strings, shape);
  }

  State state() const override {
    State state{std::string(kTextVectorization),
                {{"vocabulary", index_.tokens()},
                 {"standardize", text_column(standardize_names()[static_cast<size_t>(options_.standardize)])},
                 {"split", text_column(split_names()[static_cast<size_t>(options_.split)])},
                 {"ngrams", number_column(options_.ngrams)},
                 {"output_mode", text_column(name_of(options_.output_mode))}}};
    if (options_.output_sequence_length) {
      state.values["output_sequence_length"] = number_column(*options_.output_sequence_length);
    }
    return state;
  }

 private:
  at::Tensor sequences(const Strings& strings, const TextShape& shape) const {
    const auto limit = static_cast<size_t>(options_.output_sequence_length.value_or(kMostCategories));
    std::vector<int64_t> numbers;
    std::vector<size_t> ends;
    ends.reserve(shape.count());
    size_t longest = 0;
    for_each_sequence(strings, shape, options_, [&](size_t, TextCutter& cutter) {
      const size_t start = numbers.size();
      cutter.for_each([&](std::string_view token) {
        numbers.push_back(index_(token));
        return numbers.size() - start < limit;
      });
      longest = std::max(longest, numbers.size() - start);
      ends.push_back(numbers.size());
    });

    // Keras leaves a single token that is not split without a dimension.
    const bool single = strings.sizes().empty() && options_.split == Split::kNone && options_.ngrams == 0 &&
                        !options_.output_sequence_length;
    const size_t length = options_.output_sequence_length ? limit : longest;
    std::vector<int64_t> sizes = shape.sequences;
    if (!single) sizes.push_back(static_cast<int64_t>(length));
    const at::Tensor result = empty_indices(sizes);
    int64_t* out = result.mutable_data_ptr<int64_t>();
    size_t start = 0;
    for (const size_t end : ends) {
      int64_t* filled = std::copy(numbers.begin() + static_cast<ptrdiff_t>(start),
                                  numbers.begin() + static_cast<ptrdiff_t>(end), out);
      out += length;
      std::fill(filled, out, 0);
      start = end;
    }
    return result;
  }

  at::Tensor rows(const Strings& strings, const TextShape& shape) const {
    const int64_t depth = index_.depth();
    const at::Tensor result = empty_rows(kTextVectorization, shape.sequences, depth);
    auto* out = result.mutable_data_ptr<float>();
    std::vector<int64_t> numbers;
    for_each_sequence(strings, shape, options_, [&](size_t number, TextCutter& cutter) {
      numbers.clear();
      cutter.for_each([&](std::string_view token) {
        numbers.push_back(index_(token));
        return true;
      });
      fill_row(options_.output_mode, numbers.data(), numbers.size(), out + static_cast<int64_t>(number) * depth);
    });
    return result;
  }

  TextVectorizationOptions options_;
  const TokenIndex<std::string> index_;
};

class TextVectorizationAdapter final : public Adapter {
 public:
  explicit TextVectorizationAdapter(const TextVectorizationOptions& options)
      : options_(options), settings_(text_settings(options)) {
    check_text_options(options_);
    check_learns(kTextVectorization, settings_, !options.vocabulary.empty());
  }

  void see(const Column& in) override {
    const Strings& strings = strings_in(kTextVectorization, in);
    for_each_sequence(strings, TextShape(strings, options_.split), options_, [&](size_t, TextCutter& cutter) {
      cutter.for_each([&](std::string_view token) {
        counts_.add(token);
        return true;
      });
    });
  }

  std::shared_ptr<const Preprocessing> finish() override {
    return std::make_shared<TextVectorization>(counts_.vocabulary(kTextVectorization, settings_),
                                               SpecialTokens::kAbsent, options_);
  }

 private:
  const TextVectorizationOptions options_;
  const LookupSettings<std::string> settings_;
  TokenCounts<std::string> counts_;
};

}  // namespace

std::shared_ptr<const Preprocessing> text_vectorization(const TextVectorizationOptions& options) {
  return std::make_shared<TextVectorization>(vocabulary_column(options.vocabulary), SpecialTokens::kMayLead, options);
}

std::unique_ptr<Adapter> text_vectorization_adapter(const TextVectorizationOptions& options) {
  return std::make_unique<TextVectorizationAdapter>(options);
}

std::shared_ptr<const Preprocessing> text_vectorization_from(StateReader& state) {
  const Column vocabulary(state.texts("vocabulary"));
  TextVectorizationOptions options{
      .standardize = static_cast<Standardize>(state.choice("standardize", standardize_names())),
      .split = static_cast<Split>(state.choice("split", split_names())),
      .ngrams = state.number("ngrams"),
      .output_mode = state.output_mode()};
  if (state.has("output_sequence_length")) options.output_sequence_length = state.number("output_sequence_length");
  return std::make_shared<TextVectorization>(vocabulary, SpecialTokens::kAbsent, std::move(options));
}

}  // namespace muster
