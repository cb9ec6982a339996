// Keras' preprocessing layers. The names of the options, their defaults and the numbers that come out are Keras 3's;
// where it surprises, or where Keras 2 and 3 differ, the comment says what holds here.
//
//   auto layer = string_lookup({.vocabulary = {"red", "green"}});
//   Column numbers = (*layer)(column);                              // int64, of the same shape
//
// Makers throw Error{kInvalidArgument} for options that make no layer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "muster/data/preprocessing/preprocessing.h"

namespace muster {

// What becomes of the number of a category, of which there are `depth`.
//   kInt       the number: int64, of the shape of the input
//   kOneHot    a row of `depth` zeros and a one: [...] -> [..., depth]. As in Keras a last dimension of 1 gives way:
//              [batch, 1] -> [batch, depth]; but [1] -> [1, depth] (Keras 3), since that is a batch of one.
//   kMultiHot  one row for all of the last dimension: [..., n] -> [..., depth]. A column of the shape [batch] is thus
//              taken for a single element, as in Keras; batches of single values need [batch, 1].
//   kCount     like kMultiHot, but how often each came
// A single value becomes [depth] (Keras 3 gives [1, depth] for kOneHot, and documents [depth]). Rows are float32, as in
// Keras 2 and as Keras 3 documents; the lookups of Keras 3.15 give the same numbers as int64.
// Limit: Keras' tf_idf, pad_to_max_tokens and sparse are left out.
enum class OutputMode { kInt, kOneHot, kMultiHot, kCount };

// Strings or whole numbers -> int64 from 0 to bins - 1, the same on all machines. Without salt it is TensorFlow's
// Fingerprint64 (FarmHash) of the bytes modulo the bins; numbers are hashed as their decimal text.
struct HashingOptions {
  int64_t bins;
  // Comes out as 0, all others from 1 on. With a single bin all come out as 0. Must be of the type of the column.
  std::optional<std::variant<std::string, int64_t>> mask_value{};
  // SipHash-2-4 with this key in place of Fingerprint64. Keras' single number is this number twice.
  std::optional<std::array<uint64_t, 2>> salt{};
};
std::shared_ptr<const Preprocessing> hashing(const HashingOptions& options);

// Strings -> their numbers in a vocabulary. The numbers begin with those of the mask token (0; only if there is one and
// for kInt) and of the values that are not in the vocabulary; then come the vocabulary's.
struct StringLookupOptions {
  // Without the special tokens, or with exactly [mask token,] oov tokens in front. Empty for an adapter.
  std::vector<std::string> vocabulary{};
  // 0: a value that is not in the vocabulary is an error. Several: Fingerprint64 says which.
  int64_t num_oov_indices = 1;
  // For the modes other than kInt it has no number: its occurrences are left out.
  std::optional<std::string> mask_token{};
  std::string oov_token = "[UNK]";      // only comes out of the inverse, and is not learned
  bool invert = false;                  // numbers -> strings; a number that nothing has becomes the oov token
  std::optional<int64_t> max_tokens{};  // with the special tokens
  OutputMode output_mode = OutputMode::kInt;
};
std::shared_ptr<const Preprocessing> string_lookup(const StringLookupOptions& options);
// The most frequent first; among equally frequent ones the greater (bytes compared) first, as Keras sorts them.
std::unique_ptr<Adapter> string_lookup_adapter(const StringLookupOptions& options = {});

// The same for whole numbers. Several oov indices: the value modulo their number says which (Keras' "floormod", never
// negative).
struct IntegerLookupOptions {
  std::vector<int64_t> vocabulary{};
  int64_t num_oov_indices = 1;
  std::optional<int64_t> mask_token{};
  int64_t oov_token = -1;
  bool invert = false;
  std::optional<int64_t> max_tokens{};
  OutputMode output_mode = OutputMode::kInt;
};
std::shared_ptr<const Preprocessing> integer_lookup(const IntegerLookupOptions& options);
std::unique_ptr<Adapter> integer_lookup_adapter(const IntegerLookupOptions& options = {});

// Whole numbers from 0 to num_tokens - 1 -> rows; any other number is an error.
// Limit: count_weights are left out.
struct CategoryEncodingOptions {
  int64_t num_tokens;
  OutputMode output_mode = OutputMode::kMultiHot;  // not kInt
};
std::shared_ptr<const Preprocessing> category_encoding(const CategoryEncodingOptions& options);

// Numbers -> the bin they lie in: below the first boundary 0, from it on 1, and so on. Compares as float32; NaN lies in
// the last bin, as in TensorFlow.
struct DiscretizationOptions {
  std::vector<float> bin_boundaries{};  // ascending; empty for an adapter
  OutputMode output_mode = OutputMode::kInt;
};
std::shared_ptr<const Preprocessing> discretization(const DiscretizationOptions& options);

// Learns boundaries that part what it sees into about equally many. Keras' algorithm: memory is bounded by 1 / epsilon,
// not by the data, and it keeps Keras' quirks, such as fewer boundaries when it sees fewer values than bins. Takes
// finite values only.
struct DiscretizationAdapterOptions {
  int64_t num_bins;
  double epsilon = 0.01;  // more than 0 and less than 1
  OutputMode output_mode = OutputMode::kInt;
};
std::unique_ptr<Adapter> discretization_adapter(const DiscretizationAdapterOptions& options);

// (x - mean) / max(sqrt(variance), 1e-7) as float32; inverted x * max(sqrt(variance), 1e-7) + mean.
struct NormalizationOptions {
  // Each index of these axes has a mean and a variance of its own; none: there is one for all. Columns of the shape
  // [batch] hold one number each and want none: -1 is their batch, as in Keras.
  std::vector<int64_t> axis{-1};
  // Both or, for an adapter, neither. Of the sizes of the axes in ascending order; sizes of 1 and missing ones in front
  // stand for all.
  at::Tensor mean{};
  at::Tensor variance{};
  bool invert = false;
};
std::shared_ptr<const Preprocessing> normalization(const NormalizationOptions& options);
// Sums in float64, where Keras sums in float32. The variance is that of the population, as in Keras.
std::unique_ptr<Adapter> normalization_adapter(const NormalizationOptions& options = {});

// kLower and the lower of kLowerAndStripPunctuation concern ASCII only, and so does the punctuation, as in Keras.
enum class Standardize { kLowerAndStripPunctuation, kLower, kStripPunctuation, kNone };
// kCharacter: of UTF-8; what is no UTF-8 becomes U+FFFD. kNone: the last dimension holds the tokens of a text.
enum class Split { kWhitespace, kCharacter, kNone };

// Texts -> the numbers of their tokens, int64: [batch] or [batch, 1] -> [batch, length], where 0 fills up and 1 is a
// token that is not in the vocabulary; for kMultiHot and kCount -> [batch, depth], where that token is 0.
// A single text, without a dimension, becomes [length] or [depth].
struct TextVectorizationOptions {
  std::vector<std::string> vocabulary{};  // may begin with "", "[UNK]" (kInt), "[UNK]" (else); empty for an adapter
  std::optional<int64_t> max_tokens{};    // with the special tokens
  Standardize standardize = Standardize::kLowerAndStripPunctuation;
  Split split = Split::kWhitespace;
  // n > 0: the tokens, then the pairs, and so on to all runs of n tokens, joined with a space.
  int64_t ngrams = 0;
  OutputMode output_mode = OutputMode::kInt;  // not kOneHot
  // For kInt. Longer ones are cut, shorter ones filled up; without it the longest of the batch is the length.
  std::optional<int64_t> output_sequence_length{};
};
std::shared_ptr<const Preprocessing> text_vectorization(const TextVectorizationOptions& options);
std::unique_ptr<Adapter> text_vectorization_adapter(const TextVectorizationOptions& options = {});

}  // namespace muster
