// A program outside the checkout: an installed Muster brings its headers, its library and libtorch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <muster/base/status.h>

#include <iostream>

int main() {
  const at::Tensor ones = at::ones({2, 3});
  if (ones.numel() != 6) return 1;
  try {
    throw muster::not_found("variable \"", "w", "\"");
  } catch (const muster::Error& error) {
    std::cout << error.what() << "\n";
  }
}
