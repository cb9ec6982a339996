// Keeps what is logged off a line that redraws itself.
#pragma once

#include <string_view>

namespace muster {

// Whether a line stands on the terminal that has no end yet and will redraw itself, such as a bar. Thread-safe.
void set_line_open(bool open);

// What a line that goes to a terminal begins with: it takes the place of an open one, which stands below it when it is
// drawn again. Thread-safe.
std::string_view over_open_line();

}  // namespace muster
