#include "muster/base/terminal_line.h"

#include <atomic>

namespace muster {
namespace {

std::atomic<bool> line_is_open = false;

}  // namespace

void set_line_open(bool open) { line_is_open = open; }

std::string_view over_open_line() { return line_is_open.exchange(false) ? "\r\033[K" : ""; }

}  // namespace muster
