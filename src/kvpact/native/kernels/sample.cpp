#include "sample.hpp"

#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

inline double two_to(int64_t exponent) { return __builtin_bit_cast(double, (exponent + 1023) << 52); }

// exp(x), x <= 0, as kvpact.model.fixed.exponential: each operation rounds once, none is fused.
// Written without a loop or a choice between fp64 numbers: GCC then makes vectors of it.
[[gnu::always_inline]] inline double exponential(double x) {
  // x = max(x, -746), on the bit patterns: those of numbers <= 0 grow with their size.
  const uint64_t bits = __builtin_bit_cast(uint64_t, x), least = __builtin_bit_cast(uint64_t, -746.0);
  x = __builtin_bit_cast(double, bits < least ? bits : least);
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: the sum rounds to the nearest whole number, ties to even
  const double t = x * 1.4426950408889634 + magic, k = t - magic;
  const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  double series = 1.0 / 6227020800.0;
  series = series * r + 1.0 / 479001600.0;
  series = series * r + 1.0 / 39916800.0;
  series = series * r + 1.0 / 3628800.0;
  series = series * r + 1.0 / 362880.0;
  series = series * r + 1.0 / 40320.0;
  series = series * r + 1.0 / 5040.0;
  series = series * r + 1.0 / 720.0;
  series = series * r + 1.0 / 120.0;
  series = series * r + 1.0 / 24.0;
  series = series * r + 1.0 / 6.0;
  series = series * r + 0.5;
  series = series * r + 1.0;
  series = series * r + 1.0;
  // 2^k in two steps: the first is exact, so a subnormal result is rounded once.
  const int64_t power = __builtin_bit_cast(int64_t, t) - __builtin_bit_cast(int64_t, magic), part = power < -1000 ? -1000 : power;
  return series * two_to(part) * two_to(power - part);
}

}  // namespace

RowFacts row_facts(const float* logits, int64_t vocab) {
  const Vec infinite = set1(__builtin_inff());
  RowFacts facts = {-__builtin_inff(), 0, 0, -1};
  Vec largest = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) {
    const Vec x = load(logits + i);
    largest = max(x, largest);  // a NaN in x leaves the maximum as it is; it is counted below
    const int valid = lanes_of(less(x, infinite));
    if (valid == 0xff) continue;
    if (facts.first_not_valid < 0) facts.first_not_valid = i + __builtin_ctz(static_cast<unsigned>(~valid));
    facts.num_not_valid += kLanes - __builtin_popcount(static_cast<unsigned>(valid));
  }
  facts.largest = max_lanes(largest);
  for (; i < vocab; i++) {
    if (logits[i] > facts.largest) facts.largest = logits[i];
    if (logits[i] < __builtin_inff()) continue;
    if (facts.first_not_valid < 0) facts.first_not_valid = i;
    facts.num_not_valid++;
  }
  while (facts.argmax < vocab - 1 && logits[facts.argmax] != facts.largest) facts.argmax++;
  for (int64_t k = 0; facts.num_not_valid && k < vocab; k++)
    if (logits[k] != logits[k]) facts.largest = logits[k];
  return facts;
}

int64_t exp_sum_scratch(int64_t vocab) {
  int64_t half = 1;
  while (2 * half < vocab) half *= 2;
  return half;
}

double exp_sum(const float* logits, int64_t vocab, float largest, double* scratch) {
  if (vocab == 1) return exponential(static_cast<double>(logits[0]) - largest);
  int64_t half = exp_sum_scratch(vocab);
  for (int64_t i = 0; i < half; i++) scratch[i] = exponential(static_cast<double>(logits[i]) - largest);
  for (int64_t i = half; i < vocab; i++) scratch[i - half] += exponential(static_cast<double>(logits[i]) - largest);
  while (half > 1) {
    half /= 2;
    for (int64_t i = 0; i < half; i++) scratch[i] += scratch[i + half];
  }
  return scratch[0];
}

int64_t rank_of(const float* logits, int64_t vocab, int64_t token) {
  int64_t ahead = 0;
  const float own = logits[token];
  for (int64_t i = 0; i < vocab; i++) ahead += logits[i] > own || (logits[i] == own && i < token);
  return 1 + ahead;
}

}  // namespace kvpact::KVPACT_ISA_NS
