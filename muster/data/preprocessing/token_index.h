// Which number each token of a vocabulary has, and how one is learned: what the lookups and the vectorization of texts
// have in common. Not for users.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/hash/hash.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "muster/data/preprocessing/fingerprint.h"
#include "muster/data/preprocessing/layer_values.h"

namespace muster {

// Abseil's, and not Fingerprint64, which has no seed: a vocabulary may come from somebody who would like it to be slow.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view token) const {
    return absl::Hash<absl::string_view>()(absl::string_view(token.data(), token.size()));
  }
  size_t operator()(int64_t token) const { return absl::Hash<int64_t>()(token); }
};
struct TokenEqual {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const { return a == b; }
  bool operator()(int64_t a, int64_t b) const { return a == b; }
};

// Token is std::string or int64_t, everywhere below.
template <class Token>
using TokenView = std::conditional_t<std::is_same_v<Token, std::string>, std::string_view, Token>;

template <class Token>
struct LookupSettings {
  int64_t num_oov_indices = 1;
  std::optional<Token> mask_token{};
  Token oov_token{};
  bool invert = false;
  OutputMode output_mode = OutputMode::kInt;
  std::optional<int64_t> max_tokens{};  // is about vocabularies to come; not part of a state

  int64_t oov_start() const { return mask_token && output_mode == OutputMode::kInt ? 1 : 0; }
  int64_t token_start() const { return oov_start() + num_oov_indices; }
  // Throws Error{kInvalidArgument}.
  void check(std::string_view layer) const;
};

// Whether a vocabulary may begin with the special tokens. What a state holds or an adapter learns does not.
enum class SpecialTokens { kMayLead, kAbsent };

// Immutable and thread-safe.
template <class Token>
class TokenIndex {
 public:
  using View = TokenView<Token>;

  // `layer` is for messages, and outlives the index. The vocabulary is strings or int64 in a row. Throws
  // Error{kInvalidArgument}.
  TokenIndex(std::string_view layer, const Column& vocabulary, SpecialTokens special, LookupSettings<Token> settings);
  TokenIndex(const TokenIndex&) = delete;
  TokenIndex& operator=(const TokenIndex&) = delete;

  const LookupSettings<Token>& settings() const { return settings_; }
  const Column& tokens() const { return tokens_; }  // without the special ones
  int64_t depth() const { return settings_.token_start() + count_; }

  // kNoCategory for the mask token where it has no number. Throws Error{kInvalidArgument} for an unknown token when no
  // index is there for it.
  int64_t operator()(View token) const {
    const auto found = numbers_.find(token);
    return found != numbers_.end() ? found->second : unknown(token);
  }

  // The inverse.
  View token(int64_t number) const {
    if (settings_.mask_token && number == 0) return *settings_.mask_token;
    const int64_t start = settings_.token_start();
    return number < start || number - start >= count_ ? View(settings_.oov_token) : at(number - start);
  }

 private:
  View at(int64_t place) const {
    if constexpr (std::is_same_v<Token, std::string>) {
      return tokens_.strings()[static_cast<size_t>(place)];
    } else {
      return values_[place];
    }
  }
  int64_t unknown(View token) const {
    if (settings_.num_oov_indices == 1) return settings_.oov_start();
    if (settings_.num_oov_indices == 0) refuse(token);
    if constexpr (std::is_same_v<Token, std::string>) {
      const uint64_t bucket = fingerprint64(token) % static_cast<uint64_t>(settings_.num_oov_indices);
      return settings_.oov_start() + static_cast<int64_t>(bucket);
    } else {
      const int64_t rest = token % settings_.num_oov_indices;
      return settings_.oov_start() + (rest < 0 ? rest + settings_.num_oov_indices : rest);
    }
  }
  [[noreturn]] void refuse(View token) const;

  const std::string_view layer_;
  const LookupSettings<Token> settings_;
  Column tokens_;
  const int64_t* values_ = nullptr;  // of tokens_, when they are numbers
  int64_t count_ = 0;
  // The keys lie in tokens_ and settings_.
  absl::flat_hash_map<View, int64_t, TokenHash, TokenEqual> numbers_;
};

// How often each token was seen.
template <class Token>
class TokenCounts {
 public:
  void add(TokenView<Token> token) {
    const auto found = counts_.find(token);
    if (found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(token, 1);
    }
  }

  // The most frequent first, the greater first among equals, without the special tokens and no more than max_tokens
  // allows. Throws Error{kFailedPrecondition} when there are none.
  Column vocabulary(std::string_view layer, const LookupSettings<Token>& settings) const;

 private:
  absl::flat_hash_map<Token, int64_t, TokenHash, TokenEqual> counts_;
};

// An adapter's options: it learns the vocabulary, and has room for it.
template <class Token>
void check_learns(std::string_view layer, const LookupSettings<Token>& settings, bool has_vocabulary);

// A row of strings.
Column vocabulary_column(const std::vector<std::string>& vocabulary);

}  // namespace muster
