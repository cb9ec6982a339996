// How the layers read the columns they are given and write the ones they give. Not for users.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/data/preprocessing/preprocessing_layers.h"

namespace muster {

// For messages; takes any column, even one without a tensor.
std::string words_for(const Column& column);

// Whether it is a tensor whose elements this process can read.
bool has_elements_here(const Column& column);

// These throw Error{kInvalidArgument} for other columns; `layer` is for the message.
const Strings& strings_in(std::string_view layer, const Column& in);
// As int64, contiguous.
at::Tensor integers_in(std::string_view layer, const Column& in, std::string_view expected = "whole numbers");
// As float32, contiguous. Takes any real numbers.
at::Tensor floats_in(std::string_view layer, const Column& in);

// An int64 tensor to be filled.
at::Tensor empty_indices(at::IntArrayRef sizes);

// A category that gets no one and is not counted.
constexpr int64_t kNoCategory = -1;

// What an output mode makes of categories, each of which is kNoCategory or from 0 to depth - 1.
Column encoded(std::string_view layer, OutputMode mode, int64_t depth, const at::Tensor& categories);

// The rows of kMultiHot and kCount, to be filled from the categories of each row: [..., depth] zeros.
at::Tensor empty_rows(std::string_view layer, std::vector<int64_t> sizes, int64_t depth);
void fill_row(OutputMode mode, const int64_t* categories, size_t count, float* row);

}  // namespace muster
