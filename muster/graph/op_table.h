// All that is known of ops besides what their schemas say, in one table. Whoever needs it looks an op up once: a parsed
// schema has it (op_schema.h), and so has each op of a plan.
#pragma once

#include <string_view>
#include <vector>

namespace muster {

// Of an op with all its overloads.
struct OpFamily {
  // Arguments that it writes to, and a tensor whose memory its results share, which its schema does not say.
  std::vector<std::string_view> hidden_writes{};
  std::string_view hidden_alias{};
  bool random = false;              // takes random numbers, although it has no Generator among its arguments
  bool unset = false;               // returns memory that nobody has written
  bool view = false;                // its result is nothing but another shape on its argument's memory, always
  bool by_strides = false;          // and that by strides, so that the memory must lie as it was recorded
  bool reshapes = false;            // changes the shape of a tensor in place
  bool any_order = false;           // works element by element: takes operands in any order of memory, and keeps that
  bool asks_for_gradients = false;  // looks, below autograd, whether gradients are on
};

// An op with images, which libtorch can also run with these in channels-last order.
struct ImageKernels {
  std::vector<int> images;       // positions; one for a forward op, several for a backward op; none: a copy, whose last
                                 // argument is the order of its result
  std::string_view native{};     // libtorch's own convolution, where the op has one
  bool follows_on_gpus = false;  // takes the order that others have chosen there, and cannot be tried without effects
};

enum class MatrixProduct : char { kNone, kProduct, kSumWithProduct };  // mm, addmm

// Of one overload.
struct OpForm {
  std::string_view view_like{};  // the view that shows, with the same first arguments, what it makes of its tensor
  std::string_view in_place{};   // takes the same, and the result, if it is a tensor like that, goes to the first
                                 // operand: to be given again, if it takes one more
  std::string_view together{};   // an update in place: the op that does it for many tensors
  int common_from = 0;           // its arguments from here on are the same for all of those
  int arguments = 0;             // that it has; a schema may come from a stranger
  const ImageKernels* images = nullptr;
  MatrixProduct product = MatrixProduct::kNone;
  bool identity = false;    // shows what it is given as it is
  bool transposes = false;  // a matrix
  bool adds = false;        // adds its second operand to its first in place, element by element, times a number,
  bool subtracts = false;   // or subtracts it
  bool overwrites = false;  // each element of its first operand, whatever that was
  bool copies = false;      // its second operand into its first
};

struct OpFacts : OpFamily, OpForm {};

// By its name, with overload: "aten::add.Tensor". Of what is not in the table nothing is known. Names may be believed
// once the program was verified (op_catalog.h).
const OpFamily& family_of(std::string_view op_name);
const OpForm& form_of(std::string_view op_name);
OpFacts facts_of(std::string_view op_name);

// The position of the second matrix of a product.
inline int second_factor(MatrixProduct product) { return product == MatrixProduct::kProduct ? 1 : 2; }

}  // namespace muster
