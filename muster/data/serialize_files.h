// The steps of a description that read files, on the wire.
#pragma once

#include <algorithm>

#include "muster/data/dataset.pb.h"
#include "muster/data/dataset_node.h"

namespace muster {

void write_op(const FilesOp& op, proto::Dataset& out);
void write_op(const NumpyOp& op, proto::Dataset& out);
void write_op(const ImageFolderOp& op, proto::Dataset& out);
void write_op(const DecodeImagesOp& op, proto::Dataset& out);
void write_op(const ParseOp& op, proto::Dataset& out);
void write_op(const SelectOp& op, proto::Dataset& out);
void write_op(const RegisteredOp& op, proto::Dataset& out);  // after its inputs

// These take nothing on trust: throw Error{kInvalidArgument} for what no dataset has.
FilesOp read_op(const proto::Dataset::Files& in);
NumpyOp read_op(const proto::Dataset::Numpy& in);
ImageFolderOp read_op(const proto::Dataset::ImageFolder& in);
DecodeImagesOp read_op(const proto::Dataset::DecodeImages& in);
ParseOp read_op(const proto::Dataset::Parse& in);
SelectOp read_op(const proto::Dataset::Select& in);
Dataset read_registered(const proto::Dataset::Registered& in, const std::vector<Dataset>& inputs);

// How a function is called: by as many threads as a step may have, if more are asked for.
template <class Message>
Parallel read_within_bounds(const Message& in) {
  const int threads = in.threads() == kAutoThreads ? kAutoThreads : std::clamp(in.threads(), 1, kMostThreads);
  return {.threads = threads, .deterministic = !in.unordered()};
}

}  // namespace muster
