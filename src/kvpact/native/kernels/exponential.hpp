// Weights of sampling: the exponential of kvpact.model.fixed, and its sum over the one tree, to the bit.
#pragma once

#include <cstdint>

#include "simd.hpp"

namespace kvpact::KVPACT_ISA_NS {

static inline double two_to(int64_t exponent) { return __builtin_bit_cast(double, (exponent + 1023) << 52); }

// exp(x), x <= 0, as kvpact.model.fixed.exponential: each operation rounds once, none is fused.
// Written without a loop or a choice between fp64 numbers: GCC then makes vectors of it.
KVPACT_INLINE double exponential(double x) {
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

// fp64 numbers of scratch that the tree of a row needs: the largest power of two below `vocab`, or 1. At most `vocab`.
static inline int64_t tree_scratch(int64_t vocab) {
  int64_t half = 1;
  while (2 * half < vocab) half *= 2;
  return half;
}

// sum(exp(scaled(i))), i < vocab: padded with +0 to a power of two, then the upper half is added to the lower until one is left.
template <class Scaled>
KVPACT_INLINE double tree_of_exponentials(int64_t vocab, Scaled scaled, double* scratch) {
  if (vocab == 1) return exponential(scaled(0));
  int64_t half = tree_scratch(vocab);
  for (int64_t i = 0; i < half; i++) scratch[i] = exponential(scaled(i));
  for (int64_t i = half; i < vocab; i++) scratch[i - half] += exponential(scaled(i));
  while (half > 1) {
    half /= 2;
    for (int64_t i = 0; i < half; i++) scratch[i] += scratch[i + half];
  }
  return scratch[0];
}

}  // namespace kvpact::KVPACT_ISA_NS
