// More rules: those of PyTorch that are used less, and Ftrl, Lamb and Lion, which it has not.
#pragma once

#include <initializer_list>
#include <utility>

#include "muster/train/rule_with.h"

namespace muster {

struct AdadeltaOptions {
  Schedule learning_rate = 1.0;
  double rho = 0.9;
  double epsilon = 1e-6;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adadelta : public RuleWith<AdadeltaOptions> {
 public:
  explicit Adadelta(const AdadeltaOptions& options = {});
  explicit Adadelta(std::initializer_list<NoOption>) : Adadelta() {}
  explicit Adadelta(Trained variables, const AdadeltaOptions& options = {}) : Adadelta(options) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
};

struct AdamaxOptions {
  Schedule learning_rate = 0.002;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adamax : public RuleWith<AdamaxOptions> {
 public:
  explicit Adamax(const AdamaxOptions& options = {});
  explicit Adamax(std::initializer_list<NoOption>) : Adamax() {}
  explicit Adamax(Trained variables, const AdamaxOptions& options = {}) : Adamax(options) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
};

struct NadamOptions {
  Schedule learning_rate = 0.002;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum_decay = 0.004;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Nadam : public RuleWith<NadamOptions> {
 public:
  explicit Nadam(const NadamOptions& options = {});
  explicit Nadam(std::initializer_list<NoOption>) : Nadam() {}
  explicit Nadam(Trained variables, const NadamOptions& options = {}) : Nadam(options) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
};

struct FtrlOptions {
  Schedule learning_rate = 0.001;
  double learning_rate_power = -0.5;  // at most 0
  double initial_accumulator = 0.1;
  double l1 = 0, l2 = 0, l2_shrinkage = 0;
  double beta = 0;
  UpdateOptions all{};
};

// Follow the regularized leader, as Keras has it: for tables of which most rows should stay at zero. A step at a rate
// of 0, with which a schedule may begin, changes nothing. Throws Error{kInvalidArgument} for a group with a
// weight_decay.
class Ftrl : public RuleWith<FtrlOptions> {
 public:
  explicit Ftrl(const FtrlOptions& options = {});
  explicit Ftrl(std::initializer_list<NoOption>) : Ftrl() {}
  explicit Ftrl(Trained variables, const FtrlOptions& options = {}) : Ftrl(options) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
};

struct LambOptions {
  Schedule learning_rate = 0.001;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  UpdateOptions all{};
};

// Adam whose step is as long as the weights, so that batches may be large. A variable is a layer; of one in parts each
// part is, and of a table the rows that a step looks up.
class Lamb : public RuleWith<LambOptions> {
 public:
  explicit Lamb(const LambOptions& options = {});
  explicit Lamb(std::initializer_list<NoOption>) : Lamb() {}
  explicit Lamb(Trained variables, const LambOptions& options = {}) : Lamb(options) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
};

struct LionOptions {
  Schedule learning_rate = 0.0001;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  UpdateOptions all{};
};

// Steps of one length, by the sign of a mean of the gradients.
class Lion : public RuleWith<LionOptions> {
 public:
  explicit Lion(const LionOptions& options = {});
  explicit Lion(std::initializer_list<NoOption>) : Lion() {}
  explicit Lion(Trained variables, const LionOptions& options = {}) : Lion(options) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
};

}  // namespace muster
