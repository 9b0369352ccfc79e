#include "draw.hpp"

#include "exponential.hpp"
#include "order.hpp"
#include "sample.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

// Enough for most rows at usual settings; four times more each time that the mass is not reached.
constexpr int64_t kFirstLook = 256, kWiden = 4;
constexpr int64_t kChunk = 256;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The candidates in their order, with the running sum of their weights, as far as they are asked for.
class Candidates {
 public:
  Candidates(const DrawCall& call, float largest, uint64_t* scratch, double* sums)
      : temperature_(call.temperature), largest_(largest), order_(call.logits, call.vocab, scratch), sums_(sums) {}

  int64_t id(int64_t i) const { return id_of(order_[i]); }
  double scaled(int64_t i) const { return (static_cast<double>(logit_of(order_[i])) - largest_) / temperature_; }

  // The running sum at the `count`th candidate.
  double sum_of(int64_t count) {
    extend(count);
    return sums_[smaller(count, order_.size()) - 1];
  }

  // The first of `count` candidates whose running sum is at least `mass`; `count` when there is none.
  int64_t first_reaching(double mass, int64_t count) {
    return widen(count, [=](int64_t i) { return sums_[i] >= mass; });
  }
  // The first of `count` candidates whose running sum exceeds `mass`; `count` when there is none.
  int64_t first_exceeding(double mass, int64_t count) {
    return widen(count, [=](int64_t i) { return sums_[i] > mass; });
  }
  // How many of `count` candidates have a scaled logit of at least `least`.
  int64_t num_above(double least, int64_t count) {
    return widen(count, [=](int64_t i) { return !(scaled(i) >= least); });
  }

 private:
  // The first i < count for which `holds`, which is false for candidates up to some place and true from there on; else `count`.
  template <class Holds>
  int64_t widen(int64_t count, Holds holds) {
    for (int64_t wanted = smaller(kFirstLook, count);; wanted = smaller(kWiden * order_.size(), count)) {
      extend(wanted);
      const int64_t found = smaller(order_.size(), count);
      if (holds(found - 1)) return first(found, holds);
      if (found == count || order_.complete()) return count;
    }
  }
  template <class Holds>
  static int64_t first(int64_t end, Holds holds) {
    int64_t begin = 0;
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (holds(middle)) end = middle;
      else begin = middle + 1;
    }
    return begin;
  }

  KVPACT_NOINLINE void extend(int64_t wanted) {
    const int64_t before = order_.size();
    order_.extend(wanted);
    double weights[kChunk], running = before ? sums_[before - 1] : 0;
    for (int64_t start = before; start < order_.size(); start += kChunk) {
      const int64_t count = smaller(kChunk, order_.size() - start);
      for (int64_t i = 0; i < count; i++) weights[i] = exponential(scaled(start + i));
      for (int64_t i = 0; i < count; i++) sums_[start + i] = running += weights[i];
    }
  }

  double temperature_;
  float largest_;
  Order order_;
  double* sums_;  // [vocab]; as long as order_
};

// The weight of the whole row, over one fixed tree by id.
double mass_of(const DrawCall& call, float largest, double* scratch) {
  const float* logits = call.logits;
  const double temperature = call.temperature;
  if (temperature == 1) return exp_sum(logits, call.vocab, largest, scratch);  // a quotient by 1 is exact, and dear
  return tree_of_exponentials(
      call.vocab, [=](int64_t i) { return (static_cast<double>(logits[i]) - largest) / temperature; }, scratch);
}

}  // namespace

int64_t order_scratch(int64_t vocab) { return Order::scratch(vocab); }

void first_of(const float* logits, int64_t vocab, int64_t count, uint64_t* scratch, int64_t* ids) {
  Order order(logits, vocab, scratch);
  order.extend(count);
  for (int64_t i = 0; i < count; i++) ids[i] = i < order.size() ? id_of(order[i]) : -1;
}

int64_t draw(const DrawCall& call, uint64_t* scratch, double* sums) {
  const int64_t vocab = call.vocab, limit = call.top_k > 0 ? smaller(call.top_k, vocab) : vocab;
  const float largest = row_facts(call.logits, vocab).largest;
  if (!(__builtin_fabsf(largest) < __builtin_inff())) return -1;
  const bool nucleus = call.top_p < 1, relative = call.log_min_p > -__builtin_inf(), whole = limit == vocab;
  // Before the first running sum, for both lie in `sums`.
  const double mass = whole && (nucleus || !relative) ? mass_of(call, largest, sums) : 0;
  Candidates candidates(call, largest, scratch, sums);
  int64_t keep = limit;
  if (nucleus) {
    // Measured against what top-k left: its running sum, or the tree over the whole row.
    const double total = whole ? mass : candidates.sum_of(limit);
    keep = smaller(limit, 1 + candidates.first_reaching(call.top_p * total, limit));
  }
  if (relative) keep = candidates.num_above(call.log_min_p, keep);
  const double target = call.u * (whole && !nucleus && !relative ? mass : candidates.sum_of(keep));
  const int64_t drawn = candidates.first_exceeding(target, keep);
  // Two orders of summing differ in the last bits, so a target may lie beyond the running sum: the last candidate with weight has it.
  return candidates.id(drawn < keep ? drawn : candidates.first_reaching(candidates.sum_of(keep), keep));
}

}  // namespace kvpact::KVPACT_ISA_NS
