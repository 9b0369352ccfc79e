// The rows of a unit of attention: their queries, what they see, and what they have gathered.
#pragma once

#include "attention_weigh.hpp"

namespace kvpact::KVPACT_ISA_NS {

constexpr int64_t kDirectRows = 8;  // up to so many rows read tiles where they lie; more share a widened copy

// Rows of a panel that starts when `left` rows are left, evenly where two panels are enough: seven rows are four and three.
static inline int panel_rows(int64_t left) {
  return static_cast<int>(left <= kMaxPanel ? left : left < 2 * kMaxPanel ? (left + 1) / 2 : kMaxPanel);
}

template <int N>
struct Number {
  constexpr int operator()() const { return N; }
};

// Calls f(Number<rows>()) so that loops over the rows of a panel unroll.
template <int N = 1, class F>
static inline void with_rows(int rows, F&& f) {
  if constexpr (N < kMaxPanel)
    if (rows != N) return with_rows<N + 1>(rows, f);
  f(Number<N>());
}

// Keys that a token sees: [0, early) and [from, stop).
struct Sight {
  int64_t early, from, stop;
};

static inline Sight sight_of(const Rule& rule, int64_t position, int64_t seq_len) {
  int64_t stop = seq_len;
  if (rule.causal) stop = smaller(stop, larger(position + 1, rule.prefix));
  stop = larger(stop, int64_t{0});
  if (!rule.window) return {0, 0, stop};
  return {smaller(larger(rule.sinks, rule.prefix), stop), larger(position - rule.window + 1, int64_t{0}), stop};
}

// Bits [from, stop) of a tile that starts at `base`.
static inline uint32_t run_of_bits(int64_t from, int64_t stop, int64_t base) {
  from = smaller(larger(from - base, int64_t{0}), kTile);
  stop = smaller(larger(stop - base, int64_t{0}), kTile);
  return from >= stop ? 0 : static_cast<uint32_t>((uint64_t{1} << stop) - (uint64_t{1} << from));
}

static inline uint32_t seen_of_tile(const Sight& sight, int64_t base) {
  return run_of_bits(0, sight.early, base) | run_of_bits(sight.from, sight.stop, base);
}

// A row's closed fold: the largest score, and the sum of exp(score - largest); 0 when no key was visible.
struct Fold {
  float largest, sum;
};

// A unit's state: the queries, the open segment's folds, and those of the segments before it.
struct Rows {
  int64_t count, head_dim, group;
  float *q, *acc, *total_acc;           // [count][head_dim]
  float *scores, *shrink;               // [count][together * 32], [count][together], padded
  float *largest, *sum;                 // [count], padded to whole vectors
  float *keys, *values;                 // of a widened tile
  int together;                         // tiles
  Fold* total;                          // [count]
  Sight sight[kMaxRows];                // by token
  uint8_t token[kMaxRows];              // of each row: dividing costs as much as a softmax
};

static inline int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

template <class T>
static inline T* take(float*& scratch, int64_t count) {
  T* p = reinterpret_cast<T*>(scratch);
  scratch += round_up(count * static_cast<int64_t>(sizeof(T) / sizeof(float)));
  return p;
}

static inline void open_rows(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, float* scratch) {
  const int64_t dim = step.entries.head_dim, count = unit.num_tokens * step.group;
  rows.count = count, rows.head_dim = dim, rows.group = step.group;
  rows.together = count <= kDirectRows && step.entries.block_size % kHalf == 0 ? kTogether : 1;
  rows.q = take<float>(scratch, count * dim);
  rows.scores = take<float>(scratch, count * kTile * rows.together);
  rows.shrink = take<float>(scratch, (count + kLanes) * rows.together);
  rows.acc = take<float>(scratch, count * dim);
  rows.total_acc = take<float>(scratch, count * dim);
  rows.keys = take<float>(scratch, dim * kTile);
  rows.values = take<float>(scratch, dim * kTile);
  rows.largest = take<float>(scratch, count);
  rows.sum = take<float>(scratch, count);
  rows.total = take<Fold>(scratch, count);
  for (int64_t i = 0, r = 0; i < unit.num_tokens; i++)
    for (int64_t head = 0; head < step.group; head++) rows.token[r++] = static_cast<uint8_t>(i);
  for (int64_t i = 0; i < unit.num_tokens; i++)
    rows.sight[i] = sight_of(step.rules[unit.request], step.positions[unit.first_token + i], step.seq_lens[unit.request]);
}

// As open_rows takes it, whatever the number of rows up to `rows`.
static inline int64_t scratch_of_rows(int64_t rows, int64_t head_dim) {
  return rows * (3 * head_dim + kTile + 5) + kDirectRows * (kTile + 2) * kTogether + 2 * head_dim * kTile + 11 * 16;
}

// Where row r (token-major, then query head) of the unit lies in q and out.
static inline int64_t row_offset(const AttentionStep& step, const AttentionUnit& unit, int64_t r) {
  const int64_t heads = static_cast<int64_t>(step.entries.num_kv_heads) * step.group;
  return ((unit.first_token + r / step.group) * heads + static_cast<int64_t>(unit.kv_head) * step.group + r % step.group) *
         step.entries.head_dim;
}

// The heads of a token that share a key head are neighbours.
static inline void copy_queries(Rows& rows, const AttentionStep& step, const AttentionUnit& unit) {
  const int64_t run = step.group * rows.head_dim;
  for (int64_t i = 0; i < unit.num_tokens; i++)
    memcpy(rows.q + i * run, step.q + row_offset(step, unit, i * step.group), static_cast<size_t>(run) * sizeof(float));
}

}  // namespace kvpact::KVPACT_ISA_NS
