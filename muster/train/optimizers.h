// The rules that most models are trained by: PyTorch's, with its defaults.
#pragma once

#include <utility>

#include "muster/train/optimizer.h"

namespace muster {

struct SgdOptions {
  Schedule learning_rate = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(SgdOptions options);
  explicit Sgd(Trained variables, SgdOptions options = {}) : Sgd(std::move(options)) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
  SgdOptions options_;
};

struct AdagradOptions {
  Schedule learning_rate = 0.01;
  double initial_accumulator = 0;
  double epsilon = 1e-10;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adagrad : public Optimizer {
 public:
  explicit Adagrad(AdagradOptions options);
  explicit Adagrad(Trained variables, AdagradOptions options = {}) : Adagrad(std::move(options)) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
  AdagradOptions options_;
};

struct AdamOptions {
  Schedule learning_rate = 0.001;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool amsgrad = false;     // divides by the largest variance so far
  UpdateOptions all{};
};

// By rows as PyTorch's SparseAdam: the steps that all rows of a table have seen count for each. But for epsilon, which
// is added where Adam adds it: SparseAdam does so before the correction of the variance.
class Adam : public Optimizer {
 public:
  explicit Adam(AdamOptions options) : Adam("adam", std::move(options), /*decoupled=*/false) {}
  explicit Adam(Trained variables, AdamOptions options = {}) : Adam(std::move(options)) { bind(std::move(variables)); }

 protected:
  Adam(const std::string& name, AdamOptions options, bool decoupled);

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
  AdamOptions options_;
  bool decoupled_;  // weight decay does not pass through the means
};

struct AdamWOptions {
  Schedule learning_rate = 0.001;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // taken off the value
  bool amsgrad = false;
  UpdateOptions all{};
};

class AdamW : public Adam {
 public:
  explicit AdamW(AdamWOptions options);
  explicit AdamW(Trained variables, AdamWOptions options = {}) : AdamW(std::move(options)) {
    bind(std::move(variables));
  }
};

struct RmsPropOptions {
  Schedule learning_rate = 0.01;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double momentum = 0;
  bool centered = false;  // divides by the deviation, not by the root of the mean square
  double weight_decay = 0;
  UpdateOptions all{};
};

class RmsProp : public Optimizer {
 public:
  explicit RmsProp(RmsPropOptions options);
  explicit RmsProp(Trained variables, RmsPropOptions options = {}) : RmsProp(std::move(options)) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  RmsPropOptions options_;
};

}  // namespace muster
