#include "sample.hpp"

#include "exponential.hpp"
#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

// The lowest id whose logit equals `value`; the last one when there is none.
int64_t first_equal(const float* logits, int64_t vocab, float value) {
  int64_t i = 0;
  while (i + kLanes <= vocab && !lanes_of(equal(load(logits + i), set1(value)))) i += kLanes;
  while (i < vocab - 1 && logits[i] != value) i++;
  return i;
}

void count_not_valid(const float* logits, int64_t vocab, RowFacts& facts) {
  for (int64_t i = vocab - 1; i >= 0; i--) {
    if (logits[i] < __builtin_inff()) continue;
    facts.num_not_valid++;
    facts.first_not_valid = i;
    if (logits[i] != logits[i]) facts.largest = logits[i];
  }
}

}  // namespace

RowFacts row_facts(const float* logits, int64_t vocab) {
  constexpr int kAtOnce = 4;  // maxima that don't wait for each other
  const Vec infinite = set1(__builtin_inff());
  RowFacts facts = {-__builtin_inff(), 0, 0, -1};
  constexpr unsigned kAllLanes = (1u << kLanes) - 1;
  unsigned valid = kAllLanes;
  Vec largest[kAtOnce];
  for (Vec& part : largest) part = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= vocab; i += kAtOnce * kLanes) {
    KVPACT_UNROLL
    for (int k = 0; k < kAtOnce; k++) {
      const Vec x = load(logits + i + k * kLanes);
      largest[k] = max(x, largest[k]);  // a NaN in x leaves the maximum as it is; it is not valid
      valid &= static_cast<unsigned>(lanes_of(less(x, infinite)));
    }
  }
  for (const Vec& part : largest)
    if (max_lanes(part) > facts.largest) facts.largest = max_lanes(part);
  bool all_valid = valid == kAllLanes;
  for (; i < vocab; i++) {
    if (logits[i] > facts.largest) facts.largest = logits[i];
    all_valid = all_valid && logits[i] < __builtin_inff();
  }
  facts.argmax = first_equal(logits, vocab, facts.largest);
  if (!all_valid) count_not_valid(logits, vocab, facts);
  return facts;
}

int64_t exp_sum_scratch(int64_t vocab) { return tree_scratch(vocab); }

double exp_sum(const float* logits, int64_t vocab, float largest, double* scratch) {
  return tree_of_exponentials(vocab, [=](int64_t i) { return static_cast<double>(logits[i]) - largest; }, scratch);
}

int64_t rank_of(const float* logits, int64_t vocab, int64_t token) {
  int64_t ahead = 0;
  const float own = logits[token];
  for (int64_t i = 0; i < vocab; i++) ahead += logits[i] > own || (logits[i] == own && i < token);
  return 1 + ahead;
}

}  // namespace kvpact::KVPACT_ISA_NS
