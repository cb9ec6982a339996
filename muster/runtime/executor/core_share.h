// Threads of one process that do not use all of its cores each.
#pragma once

namespace muster {

// Lets libtorch's ops use so many threads when this thread calls them. Threads that are started later get as many as
// before. REQUIRES: count > 0.
void use_cores(int count);

}  // namespace muster
