// The online softmax of tiles: scores become weights, and what a row has gathered is told by what to shrink. Eight tiles, of two rows
// or of eight, go side by side, so that their maxima and sums are reduced together.
#pragma once

#include "attention_tile.hpp"

namespace kvpact::KVPACT_ISA_NS {

static inline float exp_nonpositive(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, exp_nonpositive(set1(x)));
  return lanes[0];
}

// exp of four vectors, step by step together: one after the other, each waits for itself at every step.
KVPACT_INLINE void exp_nonpositive(Vec (&x)[kColumns]) {
  const Vec magic = set1(12582912.0f + 127.0f);
  Vec t[kColumns], p[kColumns];
  const auto each = [](auto&& step) {
KVPACT_UNROLL
    for (int c = 0; c < kColumns; c++) step(c);
  };
  each([&](int c) { x[c] = max(set1(-88.0f), x[c]); });
  each([&](int c) { t[c] = add(mul(x[c], set1(1.44269504f)), magic); });
  each([&](int c) { x[c] = rest_of(x[c], sub(t[c], magic)); });
  each([&](int c) { p[c] = fma(set1(1.9875691500e-4f), x[c], set1(1.3981999507e-3f)); });
  each([&](int c) { p[c] = fma(p[c], x[c], set1(8.3334519073e-3f)); });
  each([&](int c) { p[c] = fma(p[c], x[c], set1(4.1665795894e-2f)); });
  each([&](int c) { p[c] = fma(p[c], x[c], set1(1.6666665459e-1f)); });
  each([&](int c) { p[c] = fma(p[c], x[c], set1(5.0000001201e-1f)); });
  each([&](int c) { x[c] = mul(add(fma(p[c], mul(x[c], x[c]), x[c]), set1(1.0f)), shift_to_exponent(t[c])); });
}

// Eight tiles of scores, some of which are seen in part or not at all. Lane i is that of tile i.
struct Scores {
  float* at[kLanes];
  uint32_t seen[kLanes];
};

// Caps and masks scores that are seen at all -> each tile's largest; -inf for what is not seen.
static inline Vec largest_of(const Scores& scores, float soft_cap) {
  Vec largest[kLanes];
KVPACT_UNROLL
  for (int i = 0; i < kLanes; i++) {
    largest[i] = set1(-__builtin_inff());
    if (!scores.seen[i]) continue;
    float* at = scores.at[i];
    Vec s[kColumns];
KVPACT_UNROLL
    for (int c = 0; c < kColumns; c++) s[c] = load(at + c * kLanes);
    if (soft_cap != 0)
      for (int c = 0; c < kColumns; c++) store(at + c * kLanes, s[c] = mul(set1(soft_cap), tanh(div(s[c], set1(soft_cap)))));
    if (scores.seen[i] != kAllVisible) {
KVPACT_UNROLL
      for (int c = 0; c < kColumns; c++) {
        s[c] = select(mask_of(scores.seen[i] >> (c * kLanes) & 0xff), s[c], set1(-__builtin_inff()));
        store(at + c * kLanes, s[c]);
      }
    }
    largest[i] = max(max(s[0], s[1]), max(s[2], s[3]));
  }
  return max_each(largest);
}

// Scores become exp(score - largest) -> each tile's sum, by a fixed tree; 0 for what is not seen.
static inline Vec weights_of(const Scores& scores, Vec largest) {
  alignas(32) float from[kLanes];
  store(from, largest);
  Vec sum[kLanes];
KVPACT_UNROLL
  for (int i = 0; i < kLanes; i++) {
    sum[i] = zero();
    if (!scores.seen[i]) continue;
    float* at = scores.at[i];
    Vec s[kColumns];
KVPACT_UNROLL
    for (int c = 0; c < kColumns; c++) s[c] = sub(load(at + c * kLanes), set1(from[i]));
    exp_nonpositive(s);
KVPACT_UNROLL
    for (int c = 0; c < kColumns; c++) store(at + c * kLanes, s[c]);
    sum[i] = add(add(s[0], s[1]), add(s[2], s[3]));
  }
  return sum_each(sum);
}

// exp(before - largest): 1 where the maximum stayed (also at -inf, whose difference is NaN).
static inline Vec shrink_of(Vec before, Vec largest) {
  return select(equal(before, largest), set1(1.0f), exp_nonpositive(sub(before, largest)));
}

// One tile of eight rows: their folds, and what each row's sums shrink by. A tile that is not seen changes no bit.
static inline void weigh_rows(const Scores& scores, float soft_cap, float* largest, float* sum, float (&shrink)[kLanes]) {
  const Vec before = load(largest), now = max(before, largest_of(scores, soft_cap));
  const Vec by = shrink_of(before, now);
  store(largest, now);
  store(shrink, by);
  store(sum, add(mul(load(sum), by), weights_of(scores, now)));
}

// Four tiles of two rows, ascending: what each makes of the maximum is what the next one starts from.
static inline void weigh_tiles(const Scores& scores, float soft_cap, float* largest, float* sum, float (&shrink)[kLanes]) {
  static_assert(2 * kTogether == kLanes);
  const Vec old = set2(largest[0], largest[1]), each = largest_of(scores, soft_cap);
  const Vec two = max(each, after_one(old, each)), now = max(old, max(two, after_two(old, two)));
  alignas(32) float sums[kLanes], last[kLanes];
  store(shrink, shrink_of(after_one(old, now), now));
  store(last, now);
  store(sums, weights_of(scores, now));
  for (int m = 0; m < 2; m++) {
    largest[m] = last[(m + 1) * kTogether - 1];
    for (int i = m * kTogether; i < (m + 1) * kTogether; i++) sum[m] = sum[m] * shrink[i] + sums[i];
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
