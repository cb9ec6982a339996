// What fit() has seen, epoch by epoch.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace muster {

// The numbers of an epoch by name: "loss", the metrics, and the same of the validation data as "val_loss", …. Of a
// model with several outputs there is "box_loss" for output "box", too, and its metrics are "box_accuracy" and so on.
class Logs : public std::map<std::string, double> {
 public:
  using map::map;
  // Throws Error{kNotFound} that lists the names, and says which is nearest.
  double operator[](const std::string& name) const { return at(name); }
  double at(const std::string& name) const;
  // A NaN loses its sign, which is nobody's and would be printed.
  void set(const std::string& name, double value) {
    insert_or_assign(name, std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
  }
};

// The one of them that `name` is most likely meant to be; "" if none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& names);

class History {
 public:
  void add(int epoch, const Logs& logs);

  const std::vector<int>& epochs() const { return epochs_; }  // from 0
  std::vector<std::string> names() const;
  // A number for each epoch. Throws Error{kNotFound} that lists the names.
  const std::vector<double>& operator[](const std::string& name) const;
  bool contains(const std::string& name) const { return values_.contains(name); }
  // Whether the training has ended before its time, with a backup, since a process was told to end (SIGTERM), and
  // the job is to be started again: `return history.preempted() ? muster::kPreempted : 0;`.
  bool preempted() const { return preempted_; }
  void set_preempted() { preempted_ = true; }

 private:
  bool preempted_ = false;
  std::vector<int> epochs_;
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace muster
