// More rules: those of PyTorch that are used less, and Ftrl, Lamb and Lion, which it has not.
#pragma once

#include <utility>

#include "muster/train/optimizer.h"

namespace muster {

struct AdadeltaOptions {
  Schedule learning_rate = 1.0;
  double rho = 0.9;
  double epsilon = 1e-6;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adadelta : public Optimizer {
 public:
  explicit Adadelta(AdadeltaOptions options);
  explicit Adadelta(Trained variables, AdadeltaOptions options = {}) : Adadelta(std::move(options)) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  AdadeltaOptions options_;
};

struct AdamaxOptions {
  Schedule learning_rate = 0.002;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adamax : public Optimizer {
 public:
  explicit Adamax(AdamaxOptions options);
  explicit Adamax(Trained variables, AdamaxOptions options = {}) : Adamax(std::move(options)) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  AdamaxOptions options_;
};

struct NadamOptions {
  Schedule learning_rate = 0.002;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum_decay = 0.004;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Nadam : public Optimizer {
 public:
  explicit Nadam(NadamOptions options);
  explicit Nadam(Trained variables, NadamOptions options = {}) : Nadam(std::move(options)) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  NadamOptions options_;
};

struct FtrlOptions {
  Schedule learning_rate = 0.001;
  double learning_rate_power = -0.5;  // at most 0
  double initial_accumulator = 0.1;
  double l1 = 0, l2 = 0, l2_shrinkage = 0;
  double beta = 0;
  UpdateOptions all{};
};

// Follow the regularized leader, as Keras has it: for tables of which most rows should stay at zero.
class Ftrl : public Optimizer {
 public:
  explicit Ftrl(FtrlOptions options);
  explicit Ftrl(Trained variables, FtrlOptions options = {}) : Ftrl(std::move(options)) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
  FtrlOptions options_;
};

struct LambOptions {
  Schedule learning_rate = 0.001;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  UpdateOptions all{};
};

// Adam whose step is as long as the weights, so that batches may be large. Of a variable in parts, each part for
// itself.
class Lamb : public Optimizer {
 public:
  explicit Lamb(LambOptions options);
  explicit Lamb(Trained variables, LambOptions options = {}) : Lamb(std::move(options)) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
  LambOptions options_;
};

struct LionOptions {
  Schedule learning_rate = 0.0001;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  UpdateOptions all{};
};

// Steps of one length, by the sign of a mean of the gradients.
class Lion : public Optimizer {
 public:
  explicit Lion(LionOptions options);
  explicit Lion(Trained variables, LionOptions options = {}) : Lion(std::move(options)) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
  LionOptions options_;
};

}  // namespace muster
