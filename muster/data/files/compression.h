#pragma once

namespace muster {

// Of a file as a whole. kGzip takes several members after each other, as `cat a.gz b.gz` makes them.
enum class Compression { kNone, kGzip, kZlib };

}  // namespace muster
