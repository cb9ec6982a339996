// Control flow that depends on data is part of the program: a loop runs as often as its data say, without another
// trace. With a path as its argument the program of the square root is written there, for `muster dump`.
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <iostream>

#include "muster/muster.h"

int main(int argc, char** argv) {
  // Newton's method: how many trips it takes depends on the number.
  auto square_root = muster::function(
      [](torch::Tensor a) {
        using State = std::tuple<torch::Tensor, torch::Tensor>;  // the root so far, trips
        return muster::while_loop([&](State now) { return (std::get<0>(now).square() - a).abs() > 1e-6 * a; },
                                  [&](State now) -> State {
                                    auto [root, trips] = now;
                                    return {(root + a / root) / 2, trips + 1};
                                  },
                                  State{torch::ones_like(a), torch::zeros({}, torch::kLong)});
      },
      {.name = "square_root"});
  for (double number : {2.0, 144.0, 1e6}) {
    auto [root, trips] = square_root(torch::tensor(number, torch::kDouble));
    std::cout << "sqrt(" << number << ") = " << root.item<double>() << " after " << trips.item<int64_t>() << " trips\n";
    if (std::abs(root.item<double>() - std::sqrt(number)) > 1e-6 * std::sqrt(number)) return 1;
  }

  // One of two functions, with a gradient that follows the one that ran.
  muster::Variable w(torch::tensor(3.0), {.name = "w"});
  auto slope = muster::function([&](torch::Tensor x) {
    torch::Tensor y = muster::cond(x > 0, [&] { return w.value() * x; }, [&] { return w.value() * w.value(); });
    return muster::gradient(y, w);
  });
  std::cout << "slope for x = 5: " << slope(torch::tensor(5.0)).item<float>()
            << ", for x = -5: " << slope(torch::tensor(-5.0)).item<float>() << "\n";

  // Ten updates of a variable as one execution.
  muster::Variable total(torch::zeros({}), {.name = "total", .trainable = false});
  auto add_ten = muster::function(
      [&](torch::Tensor first) { muster::repeat(10, [&](torch::Tensor i) { total.assign_add(first + i); }); });
  add_ten(torch::tensor(1.0));
  std::cout << "1 + 2 + ... + 10 = " << total.value().item<float>() << "\n";

  std::cout << "traced once: " << square_root.stats().misses << " trace for " << square_root.stats().hits + 1
            << " calls\n";
  if (argc > 1)
    std::ofstream(argv[1], std::ios::binary) << serialize(square_root.program(torch::tensor(2.0, torch::kDouble)));
  const bool right = slope(torch::tensor(5.0)).item<float>() == 5 && slope(torch::tensor(-5.0)).item<float>() == 6 &&
                     total.value().item<float>() == 55 && square_root.stats().misses == 1;
  return right ? 0 : 1;
}
