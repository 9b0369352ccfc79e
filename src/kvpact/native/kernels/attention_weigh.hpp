// The online softmax of tiles: scores become weights, and what a row has gathered is told by what to shrink. Eight tiles, of one row
// or of eight rows, go side by side, so that their maxima and sums are reduced together.
#pragma once

#include "attention_tile.hpp"

namespace kvpact::KVPACT_ISA_NS {

static inline float exp_nonpositive(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, exp_nonpositive(set1(x)));
  return lanes[0];
}

// Up to eight tiles of scores, some of which are seen in part or not at all. Lane i is that of tile i.
struct Scores {
  float* at[kLanes];
  uint32_t seen[kLanes];
  int count;
};

// Caps and masks scores that are seen at all -> each tile's largest; -inf for what is not seen.
static inline Vec largest_of(const Scores& scores, float soft_cap) {
  Vec largest[kLanes];
KVPACT_UNROLL
  for (int i = 0; i < kLanes; i++) {
    largest[i] = set1(-__builtin_inff());
    if (i >= scores.count || !scores.seen[i]) continue;
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
    if (i >= scores.count || !scores.seen[i]) continue;
    float* at = scores.at[i];
    Vec s[kColumns];
KVPACT_UNROLL
    for (int c = 0; c < kColumns; c++) store(at + c * kLanes, s[c] = exp_nonpositive(sub(load(at + c * kLanes), set1(from[i]))));
    sum[i] = add(add(s[0], s[1]), add(s[2], s[3]));
  }
  return sum_each(sum);
}

// exp(before - largest): 1 where the maximum stayed (also at -inf, whose difference is NaN).
static inline Vec shrink_of(Vec before, Vec largest) {
  return select(equal(before, largest), set1(1.0f), exp_nonpositive(sub(before, largest)));
}

// One tile of eight rows (of which `scores` tells some): their folds, and what their sums shrink by.
static inline void weigh_rows(const Scores& scores, float soft_cap, float* largest, float* sum, float* shrink) {
  uint32_t any = 0;
  for (int i = 0; i < scores.count; i++) any |= scores.seen[i] ? 1u << i : 0u;
  const Mask seen = mask_of(any);
  const Vec before = load(largest), now = select(seen, max(before, largest_of(scores, soft_cap)), before);
  const Vec sums = weights_of(scores, now), by = shrink_of(before, now), old = load(sum);
  store(largest, now);
  store(sum, select(seen, add(mul(old, by), sums), old));
  alignas(32) float lanes[kLanes];
  store(lanes, by);
  for (int i = 0; i < scores.count; i++) shrink[i * kTogether] = lanes[i];
}

// Some tiles of one row, ascending: what each makes of the maximum is what the next one starts from.
static inline void weigh_tiles(const Scores& scores, float soft_cap, float& largest, float& sum, float* shrink) {
  alignas(32) float before[kLanes], now[kLanes], by[kLanes], sums[kLanes];
  store(now, largest_of(scores, soft_cap));
  for (int i = 0; i < kLanes; i++) {
    before[i] = largest;
    if (i < scores.count && scores.seen[i]) largest = larger(largest, now[i]);
    now[i] = largest;
  }
  const Vec largests = load(now);
  store(sums, weights_of(scores, largests));
  store(by, shrink_of(load(before), largests));
  for (int i = 0; i < scores.count; i++) {
    shrink[i] = by[i];
    if (scores.seen[i]) sum = sum * by[i] + sums[i];
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
