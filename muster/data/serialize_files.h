// The steps of a description that read files, on the wire.
#pragma once

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

}  // namespace muster
