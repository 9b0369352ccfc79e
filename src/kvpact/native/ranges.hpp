// Named ranges of a step, as a profiler draws them: how often each was entered, and how long it took.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace kvpact {

enum class RangeName { begin, project, attend, merge, expand, contract, finish, logits };
constexpr std::array<const char*, 8> kRangeNames = {"begin", "project", "attend", "merge", "expand", "contract", "finish", "logits"};

struct RangeTotal {
  int64_t count = 0, nanoseconds = 0;
};

// Off, a range costs one test.
class Ranges {
 public:
  void enable(bool on) { on_ = on, totals_ = {}; }
  const std::array<RangeTotal, kRangeNames.size()>& totals() const { return totals_; }

  // A range lasts as long as this object.
  class Scope {
   public:
    Scope(Ranges& ranges, RangeName name) : total_(ranges.on_ ? &ranges.totals_[static_cast<size_t>(name)] : nullptr) {
      if (total_) start_ = Clock::now();
    }
    ~Scope() {
      if (!total_) return;
      total_->count++;
      total_->nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    RangeTotal* total_;
    Clock::time_point start_;
  };

 private:
  bool on_ = false;
  std::array<RangeTotal, kRangeNames.size()> totals_{};
};

}  // namespace kvpact
