#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// The replica of a task that stands for its variables, where they are placed as if they were another task's
// (session/step_program.h).
inline constexpr int kApart = 1 << 20;

struct PlacerOptions {
  std::vector<std::string> devices;  // the full names of all that exist; empty: only the default device
  std::string default_device;        // a full name; empty: the first GPU of the first device's task, else its CPU:0
  bool soft_placement = true;        // a wish for a device that its task does not have is a wish, not an order
  bool log_placement = false;        // logs placement_table()
  bool quiet = false;                // says nothing of wishes that were not met
  // Whether there is an implementation of the op for this type of device ("GPU"); none: there always is. One that is
  // not there is as a device that is not there: the op runs on its task's CPU, unless it works on memory that is
  // elsewhere.
  std::function<bool(const std::string& op, const std::string& type)> has_kernel{};
  std::string driver{};  // the task that runs control flow whose bodies are on several; "": whoever wishes
};

// Why an instruction runs where it does.
struct PlacedOp {
  std::string program;  // the name of the program or body that it stands in
  std::string op;
  std::string device;
  std::string why;  // "requested", "default device", "with its variable", …
};

// Gives every instruction, argument and variable a device that exists, and adds the copies between devices.
// - A wish is completed as TensorFlow does: a job without a task means task 0, neither means the task of the default
// device,
//   no type means the default device of that task, which is its first GPU or else CPU:0.
// - What writes to memory or is a view of it runs where that memory is, whatever it wished for: moving the update to
// the
//   gradient costs one small copy, moving the variable to the gradient costs the whole table.
// - Everything else runs where it wished to, or on the default device. Constants have no device; they are everywhere.
// - A muster::copy brings a value to another device, once for all its readers there until somebody writes to it.
//   Its `device` is its destination.
// - The bodies of control flow begin on the device of their instruction. Inputs that they write stay where they are.
// - Control flow over several tasks is the driver's, and so is what it returns.
// Logs one line when wishes were not met. Throws Error{kInvalidArgument}: a device does not exist (its task neither,
// with soft placement), one instruction writes to memory on two devices, or there is no kernel for it where it must
// run. REQUIRES: the program has passed check().
Program place(Program program, const PlacerOptions& options, std::vector<PlacedOp>* placed = nullptr);

// What `log_placement` prints: each variable and instruction and its device, in columns.
std::string placement_table(const Program& program);

}  // namespace muster
