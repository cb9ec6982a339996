#include "muster/cluster/random_program.h"

#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"

namespace muster::testing_support {
namespace {

using Step = RandomProgram::Step;

constexpr int64_t kMostElements = 64;
constexpr size_t kMostTensors = 40;

bool is_float(const at::Tensor& t) { return t.is_floating_point(); }
bool is_int(const at::Tensor& t) { return t.scalar_type() == at::kLong || t.scalar_type() == at::kInt; }
bool is_bool(const at::Tensor& t) { return t.scalar_type() == at::kBool; }

// Small whole numbers: sums and products of a few are exact in every order.
at::Tensor bounded(const at::Tensor& t) {
  if (is_bool(t)) return t.to(at::kLong);
  if (is_int(t)) return t.remainder(17);
  return torch::nan_to_num(t, 0, 16, -16).round().clamp(-16, 16);
}

at::Tensor converted(const at::Tensor& t, at::ScalarType type) {
  if (is_float(t) && !at::isFloatingType(type)) return bounded(t).to(type);
  return t.to(type);
}

class Run {
 public:
  Run(Tensors pool, size_t variables, const Memory& memory, const std::vector<std::string>& devices)
      : pool_(std::move(pool)), variables_(variables), memory_(memory), devices_(devices) {}

  void steps(const RandomProgram& program);
  const Tensors& pool() const { return pool_; }
  // Something in the pool that can take the place of `like`.
  at::Tensor alike(const at::Tensor& like, size_t first) const {
    for (size_t i = pool_.size(); i-- > first;) {
      if (pool_[i].sizes() == like.sizes() && pool_[i].scalar_type() == like.scalar_type()) return pool_[i];
    }
    return like;
  }

 private:
  using Apply = bool (Run::*)(const Step& step);
  struct Kind {
    const char* name;
    Apply apply;
  };
  friend const char* name_of(const Step& step);
  friend const std::vector<std::pair<std::string, int64_t>>& counts();

  at::Tensor operand(const Step& step, int which) const { return pool_[step.numbers[which] % pool_.size()]; }
  bool add(const at::Tensor& result) {
    if (result.numel() > kMostElements || pool_.size() >= kMostTensors) return false;
    pool_.push_back(result);
    return true;
  }
  // Memory in another order comes out of control flow as a copy.
  static at::Tensor own(const at::Tensor& t) { return t.is_contiguous() ? t : t.clone(); }
  static int64_t dim_of(const at::Tensor& t, uint32_t number) { return t.dim() == 0 ? 0 : number % t.dim(); }

  bool make(const Step& step) {
    switch (step.numbers[0] % 4) {
      case 0: return add(torch::arange(1 + step.numbers[1] % 4));
      case 1: return add(torch::full({1 + step.numbers[1] % 3, 1 + step.numbers[2] % 3}, 0.5 + step.numbers[3] % 4));
      case 2: return add(torch::tensor({static_cast<int64_t>(step.numbers[1] % 9), int64_t{3}}));
      default: return add(torch::zeros({2, 3}, at::kDouble));
    }
  }
  bool binary(const Step& step) {
    const at::Tensor a = operand(step, 0), b = operand(step, 1);
    switch (step.numbers[2] % 8) {
      case 0: return add(a + b);
      case 1: return !(is_bool(a) || is_bool(b)) && add(a - b);
      case 2: return add(a * b);
      case 3: return add(torch::minimum(a, b));
      case 4: return add(torch::maximum(a, b));
      case 5: return add(a > b);
      case 6: return add(torch::eq(a, b));
      default: return is_float(a) && is_float(b) && add(a / (b.abs() + 1));
    }
  }
  bool unary(const Step& step) {
    const at::Tensor a = operand(step, 0);
    if (is_bool(a)) return add(a.logical_not());
    switch (step.numbers[1] % 8) {
      case 0: return add(a.neg());
      case 1: return add(a.abs());
      case 2: return add(a.relu());
      case 3: return add(a * 2 + 1);
      case 4: return add(a.clamp(-3, 5));
      case 5: return add(a.square());
      case 6: return add(1 - a);
      default: return is_float(a) && add(a.floor());
    }
  }
  bool integer(const Step& step) {
    const at::Tensor a = operand(step, 0);
    if (!is_int(a)) return false;
    const auto by = static_cast<int64_t>(1 + step.numbers[1] % 3);
    switch (step.numbers[2] % 6) {
      case 0: return add(a.__lshift__(by));
      case 1: return add(a.__rshift__(by));
      case 2: return add(a & by);
      case 3: return add(a ^ (by + 4));
      case 4: return add(a.bitwise_not());
      default: return add(a.floor_divide(by + 1));
    }
  }
  bool convert(const Step& step) {
    constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kLong, at::kInt};
    return add(converted(operand(step, 0), kTypes[step.numbers[1] % kTypes.size()]));
  }
  bool view(const Step& step) {
    const at::Tensor a = operand(step, 0);
    const int64_t dim = dim_of(a, step.numbers[1]);
    switch (step.numbers[2] % 10) {
      case 0: return a.dim() > 1 && add(a.transpose(dim, dim_of(a, step.numbers[3])));
      case 1: return a.dim() > 0 && a.size(dim) > 0 && add(a.select(dim, step.numbers[3] % a.size(dim)));
      case 2: return a.dim() > 0 && add(a.slice(dim, step.numbers[3] % 2, std::nullopt, 1 + step.numbers[3] / 2 % 2));
      case 3: return a.dim() < 3 && add(a.unsqueeze(dim));
      case 4: return add(a.squeeze());
      case 5: return a.dim() > 0 && a.size(dim) > 1 && add(a.narrow(dim, 1, a.size(dim) - 1));
      case 6: return a.dim() > 1 && add(a.diagonal());
      case 7: return add(a.detach());
      case 8:
        return a.dim() < 3 && add(a.unsqueeze(0).expand([&] {
                 std::vector<int64_t> sizes = a.sizes().vec();
                 sizes.insert(sizes.begin(), 2);
                 return sizes;
               }()));
      default: return a.dim() == 2 && add(a.t());
    }
  }
  bool copy(const Step& step) {
    const at::Tensor a = operand(step, 0), b = operand(step, 1);
    const int64_t dim = dim_of(a, step.numbers[2]);
    switch (step.numbers[3] % 8) {
      case 0: return add(a.clone());
      case 1: return add(a.reshape({-1}).clone());
      case 2: return a.dim() > 0 && a.scalar_type() == b.scalar_type() && add(torch::cat({a, b}, dim));
      case 3: return a.sizes() == b.sizes() && add(torch::stack({a, b}, 0));
      case 4: return a.dim() > 0 && add(a.flip({dim}));
      case 5: return a.dim() > 0 && add(a.roll(1, dim));
      case 6: return a.dim() == 2 && add(a.tril());
      default: return add(a.contiguous().clone());
    }
  }
  bool choose(const Step& step) {
    const at::Tensor a = operand(step, 0), b = operand(step, 1);
    switch (step.numbers[3] % 4) {
      case 0: return !is_bool(a) && !is_bool(b) && add(torch::where(a > 1, a, b));
      case 1: return !is_bool(a) && add(a.masked_fill(a < 0, 2));
      case 2: {
        if (a.dim() == 0 || is_bool(b)) return false;
        const int64_t dim = dim_of(a, step.numbers[2]);
        if (a.size(dim) == 0 || b.numel() == 0) return false;
        return add(a.index_select(dim, converted(b, at::kLong).remainder(a.size(dim)).reshape({-1})));
      }
      default: return a.dim() > 0 && a.numel() > 0 && add(a.index({torch::tensor({0}), "..."}));
    }
  }
  bool reduce(const Step& step) {
    const at::Tensor a = operand(step, 0);
    if (a.numel() == 0) return false;
    const int64_t dim = dim_of(a, step.numbers[1]);
    switch (step.numbers[2] % 7) {
      case 0: return add(bounded(a).sum());
      case 1: return a.dim() > 0 && add(bounded(a).sum(dim));
      case 2: return a.dim() > 0 && add(a.amax(dim));
      case 3: return !is_bool(a) && add(torch::nan_to_num(a).min());
      case 4: return is_bool(a) && add(a.any());
      case 5: return is_int(a) && a.dim() > 0 && add(a.cumsum(dim));
      default: return a.dim() > 0 && add(bounded(a).argmax(dim));
    }
  }
  bool multiply(const Step& step) {
    const at::Tensor a = operand(step, 0), b = operand(step, 1);
    if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0) || !is_float(a) || a.scalar_type() != b.scalar_type()) {
      return false;
    }
    return add(torch::matmul(bounded(a), bounded(b)));
  }
  bool write(const Step& step) {
    at::Tensor a = operand(step, 0);
    if (is_bool(a)) return step.numbers[2] % 2 == 0 && (a.logical_not_(), true);
    at::Tensor b = operand(step, 1);
    // Elements of `b` may be elements of `a`: then it would matter in which order they are written.
    b = converted(b, a.scalar_type()).clone();
    switch (step.numbers[2] % 16) {
      case 0: return a.add_(b), true;
      case 1: return a.sub_(b), true;
      case 2: return a.mul_(b), true;
      case 3: return a.copy_(b), true;
      case 4: return a.add_(a), true;
      case 5: return a.fill_(static_cast<int64_t>(step.numbers[3] % 5)), true;
      case 6: return a.zero_(), true;
      case 7: return a.clamp_(-2, 9), true;
      case 8: return a.relu_(), true;
      case 9: return a.neg_(), true;
      case 10: return a.add_(b, 2), true;
      case 11: return a.masked_fill_(a > 3, 1), true;
      case 12: return is_int(a) && (a.__ilshift__(1), true);
      case 13: return a.mul_(2), true;
      case 14: {
        if (a.dim() == 0 || a.size(0) == 0) return false;
        return a.index_fill_(0, torch::tensor({static_cast<int64_t>(step.numbers[3] % a.size(0))}), 4), true;
      }
      default: {
        std::vector<at::Tensor> both{a, b};
        torch::_foreach_add_(both, 1);
        return true;
      }
    }
  }
  bool reshape_in_place(const Step& step) {
    at::Tensor a = operand(step, 0).detach();
    switch (step.numbers[1] % 4) {
      case 0: return a.dim() == 2 && add(a.t_());
      case 1: return a.dim() < 3 && add(a.unsqueeze_(0));
      case 2: return add(a.squeeze_());
      default: return a.dim() > 1 && add(a.transpose_(0, 1));
    }
  }
  bool read_variable(const Step& step) { return variables_ > 0 && add(memory_.read(step.numbers[0] % variables_)); }
  bool write_variable(const Step& step) {
    if (variables_ == 0) return false;
    const size_t variable = step.numbers[0] % variables_;
    const at::Tensor now = memory_.read(variable), b = operand(step, 1);
    if (!at::is_expandable_to(b.sizes(), now.sizes())) return false;
    memory_.write(variable, static_cast<int>(step.numbers[2] % 3), converted(b, now.scalar_type()).clone());
    return true;
  }
  bool differentiate(const Step& step) {
    if (variables_ == 0) return false;
    const size_t variable = step.numbers[0] % variables_;
    const at::Tensor b = bounded(operand(step, 1)).detach();
    const at::Tensor w = memory_.read(variable);
    if (!is_float(w) || !at::is_expandable_to(b.sizes(), w.sizes())) return false;
    at::Tensor gradient;
    {
      c10::AutoGradMode on(true);
      const at::Tensor factor = b.to(w.scalar_type()).clone();
      at::Tensor loss;
      switch (step.numbers[2] % 4) {
        case 0: loss = (w * w * factor).sum(); break;
        case 1: {
          auto yes = [&] { return (w * factor).sum(); };
          auto no = [&] { return (w * 2).sum(); };
          loss = cond(factor.sum() > 1, yes, no);
          break;
        }
        case 2: {
          auto body = [&](at::Tensor, at::Tensor s) { return s * 2 + w * factor; };
          loss = repeat(step.numbers[3] % 3, body, w * 1).sum();
          break;
        }
        default: {
          at::Tensor sum = w * factor;
          sum.add_(w.expand_as(sum));
          loss = sum.relu().sum();
        }
      }
      gradient = memory_.gradient(loss, variable);
    }
    return add(gradient);
  }
  Run inner(Tensors own) const {
    Tensors pool = pool_;
    pool.insert(pool.end(), own.begin(), own.end());
    return Run(std::move(pool), variables_, memory_, devices_);
  }
  bool branch(const Step& step) {
    const at::Tensor predicate = bounded(operand(step, 0)).sum() > 2, like = operand(step, 1);
    auto body = [&](size_t which) {
      return [this, &step, &like, which] {
        Run run = inner({});
        run.steps(step.bodies[which]);
        return own(run.alike(like, 0));
      };
    };
    return add(cond(predicate, body(0), body(1)));
  }
  bool loop(const Step& step) {
    const bool counted = step.numbers[2] % 2 == 0;
    auto trip = [&](const at::Tensor& index, const std::tuple<at::Tensor, at::Tensor>& state) {
      const size_t outside = pool_.size();
      Run run = inner({std::get<0>(state), std::get<1>(state), index});
      run.steps(step.bodies[0]);
      return std::tuple(own(run.alike(std::get<0>(state), outside)), own(run.alike(std::get<1>(state), outside)));
    };
    const std::tuple<at::Tensor, at::Tensor> first(own(operand(step, 0)), own(operand(step, 1)));
    if (counted) {
      auto [a, b] = repeat(step.numbers[3] % 4, trip, first);
      return add(a), add(b);
    }
    const auto trips = static_cast<int64_t>(step.numbers[3] % 4);
    auto [count, a, b] = while_loop(
        [&](const std::tuple<at::Tensor, at::Tensor, at::Tensor>& state) { return std::get<0>(state) < trips; },
        [&](const std::tuple<at::Tensor, at::Tensor, at::Tensor>& state) {
          // A copy: a trip that writes to the count may be one of a loop without end.
          auto [a, b] = trip(std::get<0>(state) + 0, {std::get<1>(state), std::get<2>(state)});
          return std::tuple(std::get<0>(state) + 1, a, b);
        },
        std::tuple(torch::zeros({}, at::kLong), std::get<0>(first), std::get<1>(first)));
    return add(a), add(b);
  }
  bool take(const Step& step) {
    const at::Tensor a = operand(step, 0), b = operand(step, 1);
    if (a.dim() == 0 || a.size(0) == 0 || b.numel() == 0) return false;
    return add(element(a, converted(b.reshape({-1}).slice(0, 0, 1), at::kLong).remainder(a.size(0)).squeeze(0)) + 0);
  }

  static const std::vector<Kind>& kinds();

  Tensors pool_;
  const size_t variables_;
  const Memory& memory_;
  const std::vector<std::string>& devices_;
};

const std::vector<Run::Kind>& Run::kinds() {
  static const std::vector<Kind> all = {
      {"make", &Run::make},
      {"binary", &Run::binary},
      {"unary", &Run::unary},
      {"integer", &Run::integer},
      {"convert", &Run::convert},
      {"view", &Run::view},
      {"view", &Run::view},
      {"copy", &Run::copy},
      {"choose", &Run::choose},
      {"reduce", &Run::reduce},
      {"multiply", &Run::multiply},
      {"write", &Run::write},
      {"write", &Run::write},
      {"reshape_in_place", &Run::reshape_in_place},
      {"read_variable", &Run::read_variable},
      {"write_variable", &Run::write_variable},
      {"differentiate", &Run::differentiate},
      {"take", &Run::take},
      {"branch", &Run::branch},
      {"loop", &Run::loop},
  };
  return all;
}

const char* name_of(const Step& step) { return Run::kinds()[step.op % Run::kinds().size()].name; }

std::vector<std::pair<std::string, int64_t>>& mutable_counts() {
  static std::vector<std::pair<std::string, int64_t>> all;
  return all;
}

void count(const char* name) {
  for (auto& [known, number] : mutable_counts()) {
    if (known == name) {
      ++number;
      return;
    }
  }
  mutable_counts().emplace_back(name, 1);
}

void Run::steps(const RandomProgram& program) {
  for (const Step& step : program.steps) {
    std::optional<DeviceScope> on;
    if (step.device % devices_.size() != 0) on.emplace(devices_[step.device % devices_.size()]);
    const Kind& kind = kinds()[step.op % kinds().size()];
    try {
      if ((this->*kind.apply)(step)) count(kind.name);
    } catch (const c10::Error&) {
      // libtorch does not take these operands, whoever asks.
    }
  }
}

}  // namespace

RandomProgram RandomProgram::draw(std::mt19937& random, size_t count, int depth) {
  RandomProgram program;
  auto number = [&] { return static_cast<uint32_t>(random()); };
  constexpr uint32_t kControl = 18;  // branch and loop, the last of the kinds
  for (size_t i = 0; i < count; ++i) {
    Step step{.op = number() % (depth < 2 ? kControl + 2 : kControl),
              .numbers = {number() % 1000, number() % 1000, number() % 1000, number() % 1000},
              .device = number() % 4 == 0 ? 1 + number() % 2 : 0};
    if (step.op >= kControl) {
      for (int body = 0; body < 2; ++body) step.bodies.push_back(draw(random, 1 + number() % 4, depth + 1));
    }
    program.steps.push_back(std::move(step));
  }
  return program;
}

Tensors RandomProgram::run(const Tensors& arguments, size_t variables, const Memory& memory,
                           const std::vector<std::string>& devices) const {
  constexpr size_t kResults = 6;
  c10::AutoGradMode no_gradients(false);
  Run run(arguments, variables, memory, devices);
  run.steps(*this);
  const Tensors& pool = run.pool();
  return Tensors(pool.end() - static_cast<std::ptrdiff_t>(std::min(kResults, pool.size())), pool.end());
}

std::string RandomProgram::to_string(const std::string& indent) const {
  std::string text;
  for (const Step& step : steps) {
    str_append(text, indent, "{", step.op, ", {", step.numbers[0], ", ", step.numbers[1], ", ", step.numbers[2], ", ",
               step.numbers[3], "}, ", step.device, ", {");
    for (const RandomProgram& body : step.bodies)
      str_append(text, "{{\n", body.to_string(indent + "  "), indent, "}}, ");
    str_append(text, "}},  // ", name_of(step), "\n");
  }
  return text;
}

Tensors RandomInputs::arguments(int call) const {
  std::mt19937 shapes(seed);  // the same in every call
  std::mt19937 values(seed + 7919 * static_cast<uint32_t>(call + 1));
  auto numbers = [&](std::vector<int64_t> sizes, at::ScalarType type) {
    at::Tensor t = torch::empty(sizes, at::kLong);
    for (int64_t i = 0; i < t.numel(); ++i) t.view({-1})[i] = static_cast<int64_t>(values() % 21) - 10;
    return at::isFloatingType(type) ? t.to(type) / 2 : t.to(type);
  };
  constexpr std::array kTypes = {at::kFloat, at::kLong, at::kDouble, at::kInt};
  Tensors all;
  const size_t count = 1 + shapes() % 3;
  for (size_t i = 0; i < count; ++i) {
    if (!all.empty() && shapes() % 3 == 0) {
      const at::Tensor other = all[shapes() % all.size()];
      switch (shapes() % 4) {
        case 0: all.push_back(other); continue;
        case 1: all.push_back(other.dim() > 1 ? other.transpose(0, 1) : other.detach()); continue;
        case 2:
          all.push_back(other.dim() > 0 && other.size(0) > 1 ? other.narrow(0, 1, other.size(0) - 1) : other);
          continue;
        default: all.push_back(other.dim() > 0 ? other.select(0, 0) : other.unsqueeze(0)); continue;
      }
    }
    std::vector<int64_t> sizes(shapes() % 3 + (i == 0 ? 1 : 0));
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(shapes() % 4);
    at::Tensor t = numbers(sizes, kTypes[shapes() % kTypes.size()]);
    if (t.dim() > 1 && shapes() % 4 == 0) t = t.transpose(0, 1);
    if (t.dim() > 0 && shapes() % 5 == 0) t = torch::cat({t, t})[0].unsqueeze(0).narrow(0, 0, 1);
    all.push_back(t);
  }
  return all;
}

Tensors RandomInputs::variables() const {
  std::mt19937 random(seed ^ 0x5bd1e995u);
  Tensors all;
  const size_t count = random() % 3;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int64_t> sizes(random() % 3);
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(random() % 3);
    const at::Tensor t = torch::full(sizes, static_cast<double>(random() % 5) - 1.5);
    all.push_back(random() % 3 == 0 ? t.to(at::kLong) : t);
  }
  return all;
}

const std::vector<std::pair<std::string, int64_t>>& step_counts() { return mutable_counts(); }

}  // namespace muster::testing_support
