#include "muster/data/preprocessing/token_index.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/layer_state.h"

namespace muster {
namespace {

std::string quoted_token(std::string_view token) {
  return str_cat("\"", absl::Utf8SafeCEscape(absl::string_view(token.data(), token.size())), "\"");
}
std::string quoted_token(int64_t token) { return str_cat(token); }

// Reads a vocabulary that is one of the two.
template <class Token>
class VocabularyView {
 public:
  explicit VocabularyView(const Column& column) : column_(column) {}
  int64_t size() const { return column_.sizes()[0]; }
  TokenView<Token> operator[](int64_t place) const {
    if constexpr (std::is_same_v<Token, std::string>) {
      return column_.strings()[static_cast<size_t>(place)];
    } else {
      return column_.tensor().template const_data_ptr<int64_t>()[place];
    }
  }

 private:
  const Column& column_;
};

template <class Token, class Tokens>
Column column_of_tokens(const Tokens& tokens, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<Token, std::string>) {
    size_t bytes = 0;
    for (int64_t i = begin; i < end; ++i) bytes += tokens[i].size();
    Strings strings;
    strings.reserve(static_cast<size_t>(end - begin), bytes);
    for (int64_t i = begin; i < end; ++i) strings.append(tokens[i]);
    return strings;
  } else {
    std::vector<int64_t> numbers;
    numbers.reserve(static_cast<size_t>(end - begin));
    for (int64_t i = begin; i < end; ++i) numbers.push_back(tokens[i]);
    return numbers_column(numbers);
  }
}

}  // namespace

template <class Token>
void LookupSettings<Token>::check(std::string_view layer) const {
  check_option(layer, "num_oov_indices", num_oov_indices, 0, kMostCategories);
  if (max_tokens) check_option(layer, "max_tokens", *max_tokens, 2, kMostCategories);
  if (invert && output_mode != OutputMode::kInt) {
    throw invalid_argument(layer, ": the inverse has output_mode \"int\", not \"", name_of(output_mode), "\"");
  }
  name_of(output_mode);  // throws for a number that is none
}

template <class Token>
TokenIndex<Token>::TokenIndex(std::string_view layer, const Column& vocabulary, SpecialTokens special,
                              LookupSettings<Token> settings)
    : layer_(layer), settings_(std::move(settings)) {
  settings_.check(layer_);
  const VocabularyView<Token> given(vocabulary);
  const int64_t start = settings_.token_start(), oov_start = settings_.oov_start();
  bool has_special = special == SpecialTokens::kMayLead && start <= given.size();
  for (int64_t i = 0; has_special && i < start; ++i) {
    has_special = given[i] == (i < oov_start ? View(*settings_.mask_token) : View(settings_.oov_token));
  }
  const int64_t begin = has_special ? start : 0;
  count_ = given.size() - begin;
  if (count_ == 0) throw invalid_argument(layer_, ": the vocabulary is empty");
  if (depth() > settings_.max_tokens.value_or(kMostCategories)) {
    throw invalid_argument(layer_, ": a vocabulary of ", count_, " tokens and ", start,
                           " special ones, expected at most ", settings_.max_tokens.value_or(kMostCategories));
  }

  tokens_ = column_of_tokens<Token>(given, begin, given.size());
  if constexpr (std::is_same_v<Token, int64_t>) values_ = tokens_.tensor().template const_data_ptr<int64_t>();
  numbers_.reserve(static_cast<size_t>(count_) + 1);
  // First, so that a vocabulary that has it too is found out.
  if (settings_.mask_token) {
    numbers_.emplace(*settings_.mask_token, settings_.output_mode == OutputMode::kInt ? 0 : kNoCategory);
  }
  for (int64_t i = 0; i < count_; ++i) {
    const View token = at(i);
    if (!numbers_.emplace(token, start + i).second) {
      const bool is_mask = settings_.mask_token && token == *settings_.mask_token;
      throw invalid_argument(layer_, ": vocabulary: token ", quoted_token(token), " at ", i + begin,
                             is_mask ? ": the mask token may only stand in front" : ": there are two of it");
    }
    if (settings_.invert && token == settings_.oov_token) {
      throw invalid_argument(layer_, ": vocabulary: token ", quoted_token(token), " at ", i + begin,
                             ": the oov token may only stand in front");
    }
  }
  if (settings_.invert) numbers_ = {};  // was for the checks
}

template <class Token>
void TokenIndex<Token>::refuse(View token) const {
  throw invalid_argument(layer_, ": value ", quoted_token(token), " is not in the vocabulary of ", count_,
                         " tokens, and num_oov_indices is 0");
}

template <class Token>
Column TokenCounts<Token>::vocabulary(std::string_view layer, const LookupSettings<Token>& settings) const {
  std::vector<std::pair<int64_t, TokenView<Token>>> sorted;
  sorted.reserve(counts_.size());
  for (const auto& [token, count] : counts_) {
    if (token != settings.oov_token && token != settings.mask_token) sorted.emplace_back(count, token);
  }
  if (sorted.empty()) {
    throw Error(Status(StatusCode::kFailedPrecondition, str_cat(layer, ": no values were seen to learn a vocabulary")));
  }
  size_t kept = sorted.size();
  if (settings.max_tokens) kept = std::min(kept, static_cast<size_t>(*settings.max_tokens - settings.token_start()));
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<TokenView<Token>> tokens;
  tokens.reserve(kept);
  for (size_t i = 0; i < kept; ++i) tokens.push_back(sorted[i].second);
  return column_of_tokens<Token>(tokens, 0, static_cast<int64_t>(kept));
}

template <class Token>
void check_learns(std::string_view layer, const LookupSettings<Token>& settings, bool has_vocabulary) {
  settings.check(layer);
  if (has_vocabulary) throw invalid_argument(layer, ": an adapter learns the vocabulary, expected none");
  if (settings.max_tokens && *settings.max_tokens <= settings.token_start()) {
    throw invalid_argument(layer, ": max_tokens ", *settings.max_tokens, " leaves no room beside ",
                           settings.token_start(), " special tokens");
  }
}

Column vocabulary_column(const std::vector<std::string>& vocabulary) {
  return column_of_tokens<std::string>(vocabulary, 0, static_cast<int64_t>(vocabulary.size()));
}

template struct LookupSettings<std::string>;
template struct LookupSettings<int64_t>;
template class TokenIndex<std::string>;
template class TokenIndex<int64_t>;
template class TokenCounts<std::string>;
template class TokenCounts<int64_t>;
template void check_learns(std::string_view, const LookupSettings<std::string>&, bool);
template void check_learns(std::string_view, const LookupSettings<int64_t>&, bool);

}  // namespace muster
