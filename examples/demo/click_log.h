// A log of views and clicks that is made up, so that the probability of every click is known, and with it the best AUC
// that any model can reach.
#pragma once

#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace demo {

struct Field {
  const char* name;
  int ids;
  double effect;  // how much it decides
};
inline constexpr Field kFields[] = {{"user", 2000, 0.9}, {"item", 1000, 0.9}, {"shop", 200, 0.6}, {"hour", 24, 0.5}};

struct View {
  double chance;  // of a click
  bool clicked;
};

// Every id of every field has an effect of its own.
class World {
 public:
  World() : random_(7) {
    std::normal_distribution<double> normal;
    for (const Field& field : kFields) {
      std::vector<double>& effects = effects_.emplace_back();
      for (int id = 0; id < field.ids; ++id) effects.push_back(field.effect * normal(random_));
    }
  }

  // Lines such as "u17,i1904,s3,23,1".
  std::vector<View> write(const std::string& path, int views) {
    std::ofstream out(path);
    for (const Field& field : kFields) out << field.name << ',';
    out << "click\n";
    std::vector<View> all;
    for (int i = 0; i < views; ++i) {
      double logit = -0.7;
      for (size_t f = 0; f < effects_.size(); ++f) {
        const size_t id = random_() % effects_[f].size();
        logit += effects_[f][id];
        if (std::string(kFields[f].name) != "hour") out << kFields[f].name[0];
        out << id << ',';
      }
      const double chance = 1 / (1 + std::exp(-logit));
      all.push_back({chance, std::uniform_real_distribution<double>()(random_) < chance});
      out << all.back().clicked << '\n';
    }
    return all;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<double>> effects_;
};

// The probability that a click had a larger chance than a view that was none.
inline double best_auc(std::vector<View> views) {
  std::sort(views.begin(), views.end(), [](const View& a, const View& b) { return a.chance < b.chance; });
  double below = 0, pairs = 0, clicked = 0;
  for (const View& view : views) {
    if (view.clicked) {
      pairs += below;
      ++clicked;
    } else {
      ++below;
    }
  }
  return pairs / (clicked * below);
}

}  // namespace demo
