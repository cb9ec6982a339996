// C++ of one's own in datasets: called where it was given, or found by its name where a dataset is opened.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "muster/data/column.h"

namespace muster {

// Called again and again, by one thread at a time, until it returns nothing.
using ColumnGenerator = std::function<std::optional<Columns>()>;
// Makes an element of an element. Called by as many threads at once as its step has.
using ColumnFunction = std::function<Columns(Columns)>;

// What a description says to a registered name. It may come from a client of the task that opens the dataset.
using RegisteredOptions = std::map<std::string, std::string>;

// For Dataset::registered and Dataset::map_registered in this process. Whoever describes a dataset and whoever opens it
// register the same. `make` is called for each round of an opened dataset, and for each map of one; what it throws
// fails the opening. Any client of a server may have it called: register only what takes no option on trust.
// Throws Error{kAlreadyExists} for a name that is taken. Thread-safe.
void register_dataset_source(const std::string& name, std::function<ColumnGenerator(const RegisteredOptions&)> make);
void register_dataset_map(const std::string& name, std::function<ColumnFunction(const RegisteredOptions&)> make);

}  // namespace muster
