// The rules that most models are trained by: PyTorch's, with its defaults.
#pragma once

#include <initializer_list>
#include <utility>

#include "muster/train/rule_with.h"

namespace muster {

struct SgdOptions {
  Schedule learning_rate = 0.01;
  double momentum = 0;
  double dampening = 0;  // of what a gradient adds to the momentum, but for the first one of a variable, or of a row
  bool nesterov = false;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Sgd : public RuleWith<SgdOptions> {
 public:
  explicit Sgd(const SgdOptions& options = {});
  explicit Sgd(std::initializer_list<NoOption>) : Sgd() {}
  explicit Sgd(Trained variables, const SgdOptions& options = {}) : Sgd(options) { bind(std::move(variables)); }

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
};

struct AdagradOptions {
  Schedule learning_rate = 0.01;
  double initial_accumulator = 0;
  double epsilon = 1e-10;
  double weight_decay = 0;
  UpdateOptions all{};
};

class Adagrad : public RuleWith<AdagradOptions> {
 public:
  explicit Adagrad(const AdagradOptions& options = {});
  explicit Adagrad(std::initializer_list<NoOption>) : Adagrad() {}
  explicit Adagrad(Trained variables, const AdagradOptions& options = {}) : Adagrad(options) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
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
class Adam : public RuleWith<AdamOptions> {
 public:
  explicit Adam(const AdamOptions& options = {}) : Adam("adam", options, /*decoupled=*/false) {}
  explicit Adam(std::initializer_list<NoOption>) : Adam() {}
  explicit Adam(Trained variables, const AdamOptions& options = {}) : Adam(options) { bind(std::move(variables)); }

 protected:
  Adam(const std::string& name, const AdamOptions& options, bool decoupled);

 private:
  void update(Update step) const override;
  void update_rows(Update table, const at::Tensor& ids) const override;
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
  explicit AdamW(const AdamWOptions& options = {});
  explicit AdamW(std::initializer_list<NoOption>) : AdamW() {}
  explicit AdamW(Trained variables, const AdamWOptions& options = {}) : AdamW(options) { bind(std::move(variables)); }
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

class RmsProp : public RuleWith<RmsPropOptions> {
 public:
  explicit RmsProp(const RmsPropOptions& options = {});
  explicit RmsProp(std::initializer_list<NoOption>) : RmsProp() {}
  explicit RmsProp(Trained variables, const RmsPropOptions& options = {}) : RmsProp(options) {
    bind(std::move(variables));
  }

 private:
  void update(Update step) const override;
};

}  // namespace muster
