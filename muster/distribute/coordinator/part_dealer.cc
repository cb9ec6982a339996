#include "muster/distribute/coordinator/part_dealer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr int64_t kMostParts = 10'000'000;
constexpr int64_t kMostRounds = 1'000'000'000;
constexpr std::chrono::minutes kNothingHappens(1);
constexpr int64_t kMostAhead = 1'000;  // rounds: a reader may leave some out

}  // namespace

PartDealer::Round& PartDealer::round(int64_t number) {
  for (; begun_ <= number; ++begun_) {
    Round& round = rounds_[begun_];
    for (int64_t part = 0; part < parts_; ++part) {
      if (begun_ < rounds_before_ || (begun_ == rounds_before_ && used_before_.contains(part))) continue;
      round.left.push_back(part);
    }
    round.unused = static_cast<int64_t>(round.left.size());
  }
  return rounds_[number];
}

PartsGiven PartDealer::give(size_t worker, const PartsWanted& wanted) {
  // Of an earlier round first: somebody who was lost had it.
  for (auto& [number, round] : rounds_) {
    if (round.left.empty() || (!wanted.late && number > wanted.round)) continue;
    if (wanted.ended) return {.what = PartsGiven::What::kAgain};
    const SourcePart part{number, round.left.front()};
    round.left.pop_front();
    held_[worker].insert(part);
    return {.what = PartsGiven::What::kPart, .part = part};
  }
  if (!wanted.ended) return {.what = PartsGiven::What::kRoundOver};
  // A function that needs fewer may still use up what is too few for this one.
  const auto has_ended = [&](const auto& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto idle = idle_.find(held.first);
    return held.second.empty() || (idle != idle_.end() && idle->second < wanted.needs);
  };
  // Whoever gave elements back for another reason may never ask again.
  const bool all =
      std::ranges::all_of(held_, has_ended) || std::chrono::steady_clock::now() - last_change_ > kNothingHappens;
  return {.what = all ? PartsGiven::What::kEnd : PartsGiven::What::kElsewhere};
}

PartsGiven PartDealer::answer(size_t worker, const PartsWanted& wanted) {
  absl::MutexLock lock(&mu_);
  PartsGiven given;
  if (parts_ < 0 && wanted.parts >= 0 && wanted.parts <= kMostParts) {
    parts_ = wanted.parts;
    which_ = wanted.which;
  }
  auto refuse = [&](std::string why) {
    given.what = PartsGiven::What::kError;
    given.error = Status(StatusCode::kFailedPrecondition, std::move(why));
  };
  if (parts_before_ >= 0 && (wanted.parts != parts_before_ || wanted.which != which_before_)) {
    refuse(str_cat("a position of a dataset with ", parts_before_, " parts was given to another one, with ",
                   wanted.parts, ": it is that of other files, or of batches of another size"));
  } else if (wanted.parts != parts_ || wanted.which != which_) {
    refuse(
        str_cat("a dataset that is handed out has ", wanted.parts, " parts at worker ", worker, ", and ", parts_,
                " others where it was opened first: all workers must see the same files, in batches of the same size"));
  } else if (wanted.round < 0 || wanted.round > begun_ + rounds_before_ + kMostAhead) {
    refuse(
        str_cat("worker ", worker, " asks for round ", wanted.round, " of a dataset of which ", begun_, " were begun"));
  } else {
    std::set<SourcePart>& held = held_[worker];
    for (const SourcePart& part : wanted.used) {
      if (held.erase(part) == 0) continue;
      if (--rounds_[part.round].unused == 0 && part.round + 1 < begun_) rounds_.erase(part.round);
    }
    if (!wanted.used.empty()) last_change_ = std::chrono::steady_clock::now();
    idle_.erase(worker);
    if (wanted.ended && wanted.idle > 0) idle_[worker] = wanted.idle;
    if (wanted.request == 0) return given;  // it wants nothing
    if (!wanted.late && !wanted.ended) round(wanted.round);
    given = give(worker, wanted);
    if (given.what == PartsGiven::What::kPart) last_change_ = std::chrono::steady_clock::now();
  }
  given.request = wanted.request;
  return given;
}

void PartDealer::lost(size_t worker) {
  absl::MutexLock lock(&mu_);
  idle_.erase(worker);
  auto held = held_.extract(worker);
  if (held.empty()) return;
  for (const SourcePart& part : held.mapped()) rounds_[part.round].left.push_front(part.number);
}

std::string PartDealer::position() const {
  absl::MutexLock lock(&mu_);
  int64_t over = parts_ < 0 ? rounds_before_ : 0;
  nlohmann::json used = nlohmann::json::array();
  if (parts_ < 0) {
    for (const int64_t part : used_before_) used.push_back(part);
  } else {
    // The first round that is not over; what was used of later ones is read again.
    int64_t first = 0;
    while (first < begun_ && (!rounds_.contains(first) || rounds_.at(first).unused == 0)) ++first;
    over = std::max(first, rounds_before_);
    if (auto found = rounds_.find(first); found != rounds_.end()) {
      std::set<int64_t> unused(found->second.left.begin(), found->second.left.end());
      for (const auto& [worker, held] : held_) {
        for (const SourcePart& part : held) {
          if (part.round == first) unused.insert(part.number);
        }
      }
      for (int64_t part = 0; part < parts_; ++part) {
        if (!unused.contains(part)) used.push_back(part);
      }
    }
  }
  const int64_t parts = parts_ < 0 ? parts_before_ : parts_;
  return nlohmann::json({{"rounds", over},
                         {"parts", parts},
                         {"which", parts_ < 0 ? which_before_ : which_},
                         {"used_parts", std::move(used)}})
      .dump();
}

void PartDealer::set_position(const std::string& position) {
  const auto parsed = nlohmann::json::parse(position, nullptr, /*allow_exceptions=*/false);
  auto is_number = [&](const char* name) { return parsed.contains(name) && parsed[name].is_number_integer(); };
  const bool whole =
      parsed.is_object() && is_number("rounds") && is_number("parts") && is_number("which") &&
      parsed.contains("used_parts") && parsed["used_parts"].is_array() &&
      std::ranges::all_of(parsed["used_parts"], [](const auto& part) { return part.is_number_integer(); });
  const bool sound = whole && parsed["rounds"].get<int64_t>() >= 0 && parsed["rounds"].get<int64_t>() <= kMostRounds;
  if (!sound) {
    throw invalid_argument("\"", position.substr(0, 100), "\" is no position of a dataset that is handed out");
  }
  absl::MutexLock lock(&mu_);
  rounds_before_ = parsed["rounds"].get<int64_t>();
  parts_before_ = parsed["parts"].get<int64_t>();
  which_before_ = parsed["which"].get<uint64_t>();
  used_before_ = parsed["used_parts"].get<std::set<int64_t>>();
}

std::optional<int64_t> parts_in(const std::string& position) {
  const auto parts = nlohmann::json::parse(position).at("parts").get<int64_t>();
  return parts < 0 ? std::nullopt : std::optional(parts);
}

std::string position_before_parts(const std::string& position, int64_t first, int64_t end) {
  nlohmann::json parsed = nlohmann::json::parse(position);
  nlohmann::json used = nlohmann::json::array();
  for (int64_t part = 0; part < parsed.at("parts").get<int64_t>(); ++part) {
    if (part < first || part >= end) used.push_back(part);
  }
  parsed["rounds"] = 0;
  parsed["used_parts"] = std::move(used);
  return parsed.dump();
}

void HandingOut::answer(const PartsGiven& given) {
  worker_->hand_out(sequence_, given, &stopped_,
                    [self = shared_from_this()](const Status& status, const PartsWanted& wanted) {
                      // A worker that is gone is found out about by what it runs, and given another one.
                      if (!status.ok() || self->stopped_.cancelled()) return;
                      self->answer(self->dealer_->answer(self->index_, wanted));
                    });
}

}  // namespace muster
