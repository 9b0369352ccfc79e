// The arithmetic of one tile of 32 absolute positions against rows of queries. A row's bits depend neither on how many rows are
// taken together nor on where the tile's entries lie.
#pragma once

#include "attention_types.hpp"
#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {

// Not the standard library's templates: the linker would merge instances of all builds.
static inline int64_t smaller(int64_t a, int64_t b) { return b < a ? b : a; }
static inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
static inline float larger(float a, float b) { return a < b ? b : a; }

constexpr int kColumns = static_cast<int>(kTile) / kLanes;  // vectors of positions in a tile
constexpr uint32_t kAllVisible = 0xffffffffu;

// Where a tile's entries lie, by vector of eight positions: key (d, lane) at key[c][d * key_stride + lane], value (lane, d) at
// value[c][lane * head_dim + d]. A vector without a visible key points where another does: its scores are masked.
template <class T>
struct Tile {
  const T* key[kColumns];
  const T* value[kColumns];
  int64_t key_stride;
};

// Memory that is wanted next: four runs, asked for line by line, in the order of addresses, at the pace of the loop that runs
// meanwhile. A tile's values are asked for while its keys are read, the next tile's keys while its values are. Into the second level:
// it takes more requests at a time than the first, which was 1.5 times as fast; in the order of use instead of that of addresses it
// was 0.8 times as fast, in one burst half.
struct Ahead {
  const char* at[kColumns];
  int64_t row;  // bytes from one row of 32 entries to the next
};
template <int C>
static inline const char* wanted_from(const Ahead& ahead, int64_t round, int64_t head_dim) {
  const int64_t rounds = head_dim / C;  // of a run: head_dim * 8 entries, C * 8 a round
  const int64_t run = smaller(round / rounds, kColumns - 1);
  return ahead.at[run] + (round - run * rounds) * (ahead.row * C / kColumns);
}
template <int C, class T>
static inline void ask(const char*& wanted, const Ahead& ahead) {
  prefetch_l2(wanted);
  if (C * kLanes * sizeof(T) > 64) prefetch_l2(wanted + 64);
  wanted += ahead.row * C / kColumns;
}

// Scores of M rows (q packed as [head_dim][M]) with C vectors of positions from `first`: one accumulator a key, d ascending from +0.
template <class T, int M, int C, bool Ask>
static inline void score(const Tile<T>& tile, int first, const float* q, int64_t head_dim, float* scores, const Ahead& ahead) {
  Vec sum[M][C];
KVPACT_UNROLL
  for (int m = 0; m < M; m++)
KVPACT_UNROLL
    for (int c = 0; c < C; c++) sum[m][c] = zero();
  const T* key[C];
KVPACT_UNROLL
  for (int c = 0; c < C; c++) key[c] = tile.key[first + c];
  const int64_t stride = tile.key_stride;
  for (int64_t d8 = 0; d8 < head_dim; d8 += kLanes) {
    const char* wanted = Ask ? wanted_from<C>(ahead, first / C * head_dim + d8, head_dim) : nullptr;
    for (int64_t d = d8; d < d8 + kLanes; d++) {
      if (Ask) ask<C, T>(wanted, ahead);
      // The smaller side stays in registers, the other passes through one.
      if constexpr (M < C) {
        Vec b[M];
KVPACT_UNROLL
        for (int m = 0; m < M; m++) b[m] = set1(q[d * M + m]);
KVPACT_UNROLL
        for (int c = 0; c < C; c++) {
          const Vec k = load(key[c] + d * stride);
KVPACT_UNROLL
          for (int m = 0; m < M; m++) sum[m][c] = fma(b[m], k, sum[m][c]);
        }
      } else {
        Vec k[C];
KVPACT_UNROLL
        for (int c = 0; c < C; c++) k[c] = load(key[c] + d * stride);
KVPACT_UNROLL
        for (int m = 0; m < M; m++) {
          const Vec b = set1(q[d * M + m]);
KVPACT_UNROLL
          for (int c = 0; c < C; c++) sum[m][c] = fma(b, k[c], sum[m][c]);
        }
      }
    }
  }
KVPACT_UNROLL
  for (int m = 0; m < M; m++)
KVPACT_UNROLL
    for (int c = 0; c < C; c++) store(scores + m * kTile + (first + c) * kLanes, sum[m][c]);
}

// acc [M][head_dim] += p [M][32] times values, for C vectors of outputs from `x`: one accumulator an output, keys ascending. Keys that
// are not in `visible` are not multiplied: 0 times NaN is no 0.
template <class T, int M, int C, bool Ask>
static inline void add_values(const Tile<T>& tile, const Ahead& ahead, uint32_t visible, const float* p,
                              int64_t head_dim, int64_t x, float* acc) {
  Vec sum[M][C];
KVPACT_UNROLL
  for (int m = 0; m < M; m++)
KVPACT_UNROLL
    for (int c = 0; c < C; c++) sum[m][c] = load(acc + m * head_dim + x + c * kLanes);
  const auto take = [&](int64_t t, const T* row) {
    Vec v[C];
KVPACT_UNROLL
    for (int c = 0; c < C; c++) v[c] = load(row + c * kLanes);
KVPACT_UNROLL
    for (int m = 0; m < M; m++) {
      const Vec b = set1(p[m * kTile + t]);
KVPACT_UNROLL
      for (int c = 0; c < C; c++) sum[m][c] = fma(b, v[c], sum[m][c]);
    }
  };
  if (visible == kAllVisible) {
    for (int j = 0; j < kColumns; j++) {
      const T* row = tile.value[j] + x;
      const char* wanted = Ask ? wanted_from<C>(ahead, x / (C * kLanes) * kTile + j * kLanes, head_dim) : nullptr;
      for (int i = 0; i < kLanes; i++) {
        if (Ask) ask<C, T>(wanted, ahead);
        take(j * kLanes + i, row + i * head_dim);
      }
    }
  } else {
    for (uint32_t left = visible; left; left &= left - 1) {
      const int t = __builtin_ctz(left);
      take(t, tile.value[t / kLanes] + (t % kLanes) * head_dim + x);
    }
  }
KVPACT_UNROLL
  for (int m = 0; m < M; m++)
KVPACT_UNROLL
    for (int c = 0; c < C; c++) store(acc + m * head_dim + x + c * kLanes, sum[m][c]);
}

// Three rows by four vectors, or six by two, are twelve accumulators: enough to hide the latency of an FMA, few enough for sixteen
// registers.
template <class T, int M, bool Ask>
static void score_rows(const Tile<T>& tile, const float* q, int64_t head_dim, float* scores, const Ahead& ahead) {
  constexpr int C = M <= 3 ? 4 : 2;
  for (int first = 0; first < kColumns; first += C) score<T, M, C, Ask>(tile, first, q, head_dim, scores, ahead);
}

template <class T, int M, bool Ask>
static void add_value_rows(const Tile<T>& tile, const Ahead& ahead, uint32_t visible, const float* p,
                           int64_t head_dim, float* acc) {
  constexpr int C = M <= 3 ? 4 : 2;
  int64_t x = 0;
  for (; x + C * kLanes <= head_dim; x += C * kLanes) add_values<T, M, C, Ask>(tile, ahead, visible, p, head_dim, x, acc);
  for (; x < head_dim; x += kLanes) add_values<T, M, 1, false>(tile, ahead, visible, p, head_dim, x, acc);
}

// A row's running fold: the largest score so far, and the sum of exp(score - largest); 0 when no key was visible.
struct Fold {
  float largest, sum;
};

static inline float exp_nonpositive(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, exp_nonpositive(set1(x)));
  return lanes[0];
}

// Turns a row's raw scores [32] into weights, and scales what the row has gathered when its maximum grows. visible is not 0.
static inline void weigh(float* scores, uint32_t visible, float scale, float soft_cap, Fold& fold, float* acc, int64_t head_dim) {
  Vec s[kColumns];
KVPACT_UNROLL
  for (int c = 0; c < kColumns; c++) s[c] = mul(load(scores + c * kLanes), set1(scale));
  if (soft_cap != 0)
    for (int c = 0; c < kColumns; c++) s[c] = mul(set1(soft_cap), tanh(div(s[c], set1(soft_cap))));
  if (visible != kAllVisible)
    for (int c = 0; c < kColumns; c++) s[c] = select(mask_of(visible >> (c * kLanes) & 0xff), s[c], set1(-__builtin_inff()));
  const float largest = larger(fold.largest, max_lanes(max(max(s[0], s[1]), max(s[2], s[3]))));
KVPACT_UNROLL
  for (int c = 0; c < kColumns; c++) {
    s[c] = exp_nonpositive(sub(s[c], set1(largest)));
    store(scores + c * kLanes, s[c]);
  }
  const float sum = sum_lanes(add(add(s[0], s[1]), add(s[2], s[3])));
  if (fold.largest != largest) {  // equal maxima would scale by exp(0) = 1: no bit changes
    const float shrink = exp_nonpositive(fold.largest - largest);
    fold.sum *= shrink;
    for (int64_t x = 0; x < head_dim; x += kLanes) store(acc + x, mul(load(acc + x), set1(shrink)));
  }
  fold = {largest, fold.sum + sum};
}

}  // namespace kvpact::KVPACT_ISA_NS
