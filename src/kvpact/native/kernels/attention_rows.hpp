// The rows of a unit of attention: their queries, what they see, and what they have gathered.
#pragma once

#include "attention_tile.hpp"

namespace kvpact::KVPACT_ISA_NS {

constexpr int kMaxPanel = 6;  // rows that are taken through a tile together

// Rows of a panel that starts when `left` rows are left. Seven and eight are split evenly.
static inline int panel_rows(int64_t left) { return static_cast<int>(left <= kMaxPanel ? left : left <= 8 ? 4 : kMaxPanel); }

template <int N>
struct Number {
  constexpr int operator()() const { return N; }
};

// Calls f(Number<rows>()) so that loops over the rows of a panel unroll.
template <class F>
static inline void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1: return f(Number<1>());
    case 2: return f(Number<2>());
    case 3: return f(Number<3>());
    case 4: return f(Number<4>());
    case 5: return f(Number<5>());
    default: return f(Number<6>());
  }
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

// A unit's state: queries packed in panels of [head_dim][rows], folds of the open segment and of those closed before.
struct Rows {
  int64_t count, head_dim, group;
  float *q, *scores, *acc, *total_acc, *keys, *values;
  Fold *fold, *total;
  Sight sight[kMaxRows];       // by token
  uint32_t visible[kMaxRows];  // by token, of the tile at hand
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
  rows.q = take<float>(scratch, count * dim);
  rows.scores = take<float>(scratch, count * kTile);
  rows.acc = take<float>(scratch, count * dim);
  rows.total_acc = take<float>(scratch, count * dim);
  rows.keys = take<float>(scratch, dim * kTile);
  rows.values = take<float>(scratch, dim * kTile);
  rows.fold = take<Fold>(scratch, count);
  rows.total = take<Fold>(scratch, count);
  for (int64_t i = 0; i < unit.num_tokens; i++)
    rows.sight[i] = sight_of(step.rules[unit.request], step.positions[unit.first_token + i], step.seq_lens[unit.request]);
}

// Where row r (token-major, then query head) of the unit lies in q and out.
static inline int64_t row_offset(const AttentionStep& step, const AttentionUnit& unit, int64_t r) {
  const int64_t heads = static_cast<int64_t>(step.entries.num_kv_heads) * step.group;
  return ((unit.first_token + r / step.group) * heads + static_cast<int64_t>(unit.kv_head) * step.group + r % step.group) *
         step.entries.head_dim;
}

static inline void pack_queries(Rows& rows, const AttentionStep& step, const AttentionUnit& unit) {
  float* to = rows.q;
  for (int64_t r = 0; r < rows.count;) {
    const int panel = panel_rows(rows.count - r);
    for (int m = 0; m < panel; m++) {
      const float* q = step.q + row_offset(step, unit, r + m);
      for (int64_t d = 0; d < rows.head_dim; d++) to[d * panel + m] = q[d];
    }
    to += panel * rows.head_dim;
    r += panel;
  }
}

// Sets what each token sees of the tile; returns what any of them sees.
static inline uint32_t look(Rows& rows, int64_t base) {
  uint32_t any = 0;
  for (int64_t i = 0; i < rows.count / rows.group; i++) any |= rows.visible[i] = seen_of_tile(rows.sight[i], base);
  return any;
}

}  // namespace kvpact::KVPACT_ISA_NS
