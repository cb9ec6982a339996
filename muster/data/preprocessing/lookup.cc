#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/layer_state.h"
#include "muster/data/preprocessing/token_index.h"

namespace muster {
namespace {

template <class Token>
constexpr std::string_view kLookupName = std::is_same_v<Token, std::string> ? "string_lookup" : "integer_lookup";

template <class Token>
constexpr bool kLooksUpStrings = std::is_same_v<Token, std::string>;

template <class Token, class Options>
LookupSettings<Token> lookup_settings(const Options& options) {
  return {.num_oov_indices = options.num_oov_indices,
          .mask_token = options.mask_token,
          .oov_token = options.oov_token,
          .invert = options.invert,
          .output_mode = options.output_mode,
          .max_tokens = options.max_tokens};
}

// The tokens of a column that may be of the wrong kind.
template <class Token>
class TokensIn {
 public:
  explicit TokensIn(const Column& in) : strings_(strings_in(kLookupName<Token>, in)) {}
  size_t count() const { return strings_.count(); }
  std::string_view operator[](size_t place) const { return strings_[place]; }

 private:
  const Strings& strings_;
};

template <>
class TokensIn<int64_t> {
 public:
  explicit TokensIn(const Column& in)
      : integers_(integers_in(kLookupName<int64_t>, in)), values_(integers_.const_data_ptr<int64_t>()) {}
  size_t count() const { return static_cast<size_t>(integers_.numel()); }
  int64_t operator[](size_t place) const { return values_[place]; }

 private:
  const at::Tensor integers_;
  const int64_t* const values_;
};

template <class Token>
class Lookup final : public Preprocessing {
 public:
  Lookup(const Column& vocabulary, SpecialTokens special, LookupSettings<Token> settings)
      : index_(kLookupName<Token>, vocabulary, special, std::move(settings)) {}

  Column operator()(const Column& in) const override {
    if (index_.settings().invert) return inverted(integers_in(kLookupName<Token>, in));
    const TokensIn<Token> tokens(in);
    const at::Tensor numbers = empty_indices(in.sizes());
    int64_t* out = numbers.mutable_data_ptr<int64_t>();
    const size_t count = tokens.count();
    for (size_t i = 0; i < count; ++i) out[i] = index_(tokens[i]);
    return encoded(kLookupName<Token>, index_.settings().output_mode, index_.depth(), numbers);
  }

  bool elementwise() const override { return index_.settings().output_mode == OutputMode::kInt; }
  State state() const override {
    const auto& settings = index_.settings();
    State state{std::string(kLookupName<Token>),
                {{"vocabulary", index_.tokens()},
                 {"num_oov_indices", number_column(settings.num_oov_indices)},
                 {"oov_token", token_column(settings.oov_token)},
                 {"invert", number_column(settings.invert ? 1 : 0)},
                 {"output_mode", text_column(name_of(settings.output_mode))}}};
    if (settings.mask_token) state.values["mask_token"] = token_column(*settings.mask_token);
    return state;
  }

 private:
  static Column token_column(const Token& token) {
    if constexpr (kLooksUpStrings<Token>) {
      return text_column(token);
    } else {
      return number_column(token);
    }
  }

  Column inverted(const at::Tensor& numbers) const {
    const int64_t* values = numbers.const_data_ptr<int64_t>();
    const auto count = numbers.numel();
    if constexpr (kLooksUpStrings<Token>) {
      size_t bytes = 0;
      for (int64_t i = 0; i < count; ++i) bytes += index_.token(values[i]).size();
      Strings tokens;
      tokens.reserve(static_cast<size_t>(count), bytes);
      for (int64_t i = 0; i < count; ++i) tokens.append(index_.token(values[i]));
      tokens.shape(numbers.sizes().vec());
      return tokens;
    } else {
      at::Tensor tokens = empty_indices(numbers.sizes());
      int64_t* out = tokens.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < count; ++i) out[i] = index_.token(values[i]);
      return tokens;
    }
  }

  const TokenIndex<Token> index_;
};

template <class Token>
class LookupAdapter final : public Adapter {
 public:
  LookupAdapter(LookupSettings<Token> settings, bool has_vocabulary) : settings_(std::move(settings)) {
    check_learns(kLookupName<Token>, settings_, has_vocabulary);
  }

  void see(const Column& in) override {
    const TokensIn<Token> tokens(in);
    const size_t count = tokens.count();
    for (size_t i = 0; i < count; ++i) counts_.add(tokens[i]);
  }

  std::shared_ptr<const Preprocessing> finish() override {
    return std::make_shared<Lookup<Token>>(counts_.vocabulary(kLookupName<Token>, settings_), SpecialTokens::kAbsent,
                                           settings_);
  }

 private:
  const LookupSettings<Token> settings_;
  TokenCounts<Token> counts_;
};

template <class Token>
LookupSettings<Token> lookup_settings_from(StateReader& state) {
  const auto token = [&](std::string_view name) -> Token {
    if constexpr (kLooksUpStrings<Token>) {
      return state.text(name);
    } else {
      return state.number(name);
    }
  };
  LookupSettings<Token> settings{.num_oov_indices = state.number("num_oov_indices"),
                                 .oov_token = token("oov_token"),
                                 .invert = state.flag("invert"),
                                 .output_mode = state.output_mode()};
  if (state.has("mask_token")) settings.mask_token = token("mask_token");
  return settings;
}

}  // namespace

std::shared_ptr<const Preprocessing> string_lookup(const StringLookupOptions& options) {
  return std::make_shared<Lookup<std::string>>(vocabulary_column(options.vocabulary), SpecialTokens::kMayLead,
                                               lookup_settings<std::string>(options));
}

std::unique_ptr<Adapter> string_lookup_adapter(const StringLookupOptions& options) {
  return std::make_unique<LookupAdapter<std::string>>(lookup_settings<std::string>(options),
                                                      !options.vocabulary.empty());
}

std::shared_ptr<const Preprocessing> string_lookup_from(StateReader& state) {
  const Column vocabulary(state.texts("vocabulary"));
  return std::make_shared<Lookup<std::string>>(vocabulary, SpecialTokens::kAbsent,
                                               lookup_settings_from<std::string>(state));
}

std::shared_ptr<const Preprocessing> integer_lookup(const IntegerLookupOptions& options) {
  return std::make_shared<Lookup<int64_t>>(numbers_column(options.vocabulary), SpecialTokens::kMayLead,
                                           lookup_settings<int64_t>(options));
}

std::unique_ptr<Adapter> integer_lookup_adapter(const IntegerLookupOptions& options) {
  return std::make_unique<LookupAdapter<int64_t>>(lookup_settings<int64_t>(options), !options.vocabulary.empty());
}

std::shared_ptr<const Preprocessing> integer_lookup_from(StateReader& state) {
  const Column vocabulary = numbers_column(state.numbers("vocabulary"));
  return std::make_shared<Lookup<int64_t>>(vocabulary, SpecialTokens::kAbsent, lookup_settings_from<int64_t>(state));
}

}  // namespace muster
