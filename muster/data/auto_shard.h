// Which part of a dataset one of several input pipelines reads, for those who want to know before it is read.
#pragma once

#include <string>

#include "muster/data/dataset.h"

namespace muster {

// What kAuto comes to; any other policy is itself. Throws Error{kNotFound} for kFile if not all sources are files.
ShardPolicy chosen_policy(const Dataset& dataset, const InputContext& context, ShardPolicy policy);

// For the log: "worker 1 of 3 reads 3 of 10 files (every 3rd)". REQUIRES: the policy is a chosen one.
std::string described_part(const Dataset& dataset, const InputContext& context, ShardPolicy policy);

// Whether it begins again for ever, if there is anything in it. A generator is taken to end.
bool is_endless(const Dataset& dataset);

// Whether it has as many elements each time that it begins again. False of what files, generators, filters and
// functions of a user's own may change.
bool keeps_its_length(const Dataset& dataset);

// Whether it keeps elements for later rounds, which takes somebody who reads to the end and sees it.
bool has_cache(const Dataset& dataset);

// Whether C++ code makes elements, which may make others the next time.
bool has_generator(const Dataset& dataset);

}  // namespace muster
