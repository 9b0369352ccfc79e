// The products of tiles of 32 absolute positions with rows of queries. A row's bits depend neither on how many rows or tiles are
// taken together nor on where the tiles' entries lie.
#pragma once

#include "attention_lanes.hpp"
#include "attention_types.hpp"

namespace kvpact::KVPACT_ISA_NS {

// Not the standard library's templates: the linker would merge instances of all builds.
static inline int64_t smaller(int64_t a, int64_t b) { return b < a ? b : a; }
static inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
static inline float larger(float a, float b) { return a < b ? b : a; }

constexpr int kHalves = 2;                        // of a tile, in each of which entries are neighbours
constexpr int kHalf = static_cast<int>(kTile) / kHalves;
constexpr int kColumns = static_cast<int>(kTile) / kLanes;  // vectors of positions in a tile
constexpr uint32_t kAllVisible = 0xffffffffu;
// Tiles that pass their keys, their softmax and their values together: one after another, each waited for the steps before it, and
// what a row has gathered was loaded and stored for each.
constexpr int kTogether = 4;
constexpr int kMaxPanel = kAccumulators < 12 ? 3 : 6;  // rows that are taken through a tile together

// Where a tile's entries lie, by half: key (d, i) at key[h][d * key_stride + i], value (i, d) at value[h][i * head_dim + d]. A half
// without a visible key points where the other does: its scores are masked.
template <class T>
struct Tile {
  const T* key[kHalves];
  const T* value[kHalves];
  int64_t key_stride;
};

// Memory that is wanted next, a run for each half of a tile, asked for line by line at the pace of the loop that runs meanwhile: values
// while the keys of the same tiles are read, the next tiles' keys while values are. Into the second level: it takes more requests at
// a time than the first, which was 1.5 times as fast; in one burst was half.
struct Ahead {
  const char* at[kHalves];
  int64_t spread;  // 1: the lines are neighbours
};

// The line that is asked for after `bytes` of a tile's 2 * half_bytes.
static inline const char* wanted_from(const Ahead& ahead, int64_t bytes, int64_t half_bytes) {
  const int second = bytes >= half_bytes;
  return ahead.at[second] + (bytes - second * half_bytes) * ahead.spread;
}
template <int Bytes>
KVPACT_INLINE void ask(const char*& wanted, int64_t spread) {
KVPACT_UNROLL
  for (int line = 0; line < (Bytes + 63) / 64; line++) prefetch_l2(wanted + line * 64 * spread);
  wanted += Bytes * spread;
}

// Asks for the lines that are the share of rows [first, last) of `count`.
static inline void ask_share(const Ahead& ahead, int64_t half_bytes, int64_t first, int64_t last, int64_t count) {
  const int64_t lines = kHalves * half_bytes / 64;
  for (int64_t line = lines * first / count; line < lines * last / count; line++) prefetch_l2(wanted_from(ahead, line * 64, half_bytes));
}

// Sums of M rows by C vectors += b[m] v[c]. Two vectors lie at `left`, the others at `right`. They pass in pairs, against rows that stay
// in registers or, where those are few, are broadcast again for each pair: a sum without a register costs more.
template <class T, int M, int C>
KVPACT_INLINE void multiply(Vec (&sum)[M][C], const float* b, int64_t b_stride, const T* left, const T* right) {
  constexpr bool kKeep = M * C + M + 2 < kAccumulators + kAccumulators / 3;  // of as many registers
  Vec row[M];
KVPACT_UNROLL
  for (int m = 0; m < M && kKeep; m++) row[m] = set1(b[m * b_stride]);
KVPACT_UNROLL
  for (int c = 0; c < C; c += 2) {
    const T* at = c < 2 ? left : right + (c - 2) * kLanes;
    Vec v, w;
    if constexpr (C == 1)
      v = w = load(at);
    else if (c + 1 < C)
      load_pair(at, v, w);
    else
      v = w = load(at);
KVPACT_UNROLL
    for (int m = 0; m < M; m++) {
      const Vec by = kKeep ? row[m] : set1(b[m * b_stride]);
      sum[m][c] = fma(by, v, sum[m][c]);
      if (c + 1 < C) sum[m][c + 1 < C ? c + 1 : c] = fma(by, w, sum[m][c + 1 < C ? c + 1 : c]);
    }
    if (!kKeep && c + 2 < C) __asm__ volatile("" ::: "memory");  // or the compiler keeps them, and a sum in memory
  }
}

// Scaled scores of M rows of q with C vectors of positions from `first`: one accumulator a key, d ascending from +0.
template <class T, int M, int C, bool Ask>
KVPACT_NOINLINE static void score(const Tile<T>& tile, int first, const float* q, int64_t head_dim, float scale, float* scores,
                                  int64_t row_stride, const Ahead& ahead) {
  constexpr int kBytes = C * kLanes * static_cast<int>(sizeof(T));
  Vec sum[M][C];
KVPACT_UNROLL
  for (int m = 0; m < M; m++)
KVPACT_UNROLL
    for (int c = 0; c < C; c++) sum[m][c] = zero();
  const T *left = tile.key[first / 2] + first % 2 * kLanes, *right = first ? left + kHalf : tile.key[1];
  const int64_t stride = tile.key_stride, half_bytes = kHalf * head_dim * static_cast<int64_t>(sizeof(T)), spread = ahead.spread;
  for (int64_t d8 = 0; d8 < head_dim; d8 += kLanes) {
    const char* wanted = Ask ? wanted_from(ahead, first / 2 * half_bytes + d8 * kBytes, half_bytes) : nullptr;
    for (int64_t d = d8; d < d8 + kLanes; d++) {
      if (Ask) ask<kBytes>(wanted, spread);
      multiply<T, M, C>(sum, q + d, head_dim, left + d * stride, right + d * stride);
    }
  }
KVPACT_UNROLL
  for (int m = 0; m < M; m++) {
KVPACT_UNROLL
    for (int c = 0; c + 1 < C; c += 2) settle(left, sum[m][c], sum[m][c + 1]);
KVPACT_UNROLL
    for (int c = 0; c < C; c++) store(scores + m * row_stride + (first + c) * kLanes, mul(sum[m][c], set1(scale)));
  }
}

// Scores of [first, stop), in tiles as wide as the accumulators allow: twelve or more hide the latency of an FMA.
template <class T, int M, bool Ask, int C = M * 4 <= kAccumulators ? 4 : 2>
static void score_rows(const Tile<T>& tile, int first, int stop, const float* q, int64_t head_dim, float scale, float* scores,
                       int64_t row_stride, const Ahead& ahead) {
  for (; first + C <= stop; first += C) score<T, M, C, Ask>(tile, first, q, head_dim, scale, scores, row_stride, ahead);
  if constexpr (C > (Ask ? 2 : 1))
    if (first < stop) score_rows<T, M, Ask, Ask ? C / 2 : C - 1>(tile, first, stop, q, head_dim, scale, scores, row_stride, ahead);
}

// What the rows of a panel see of some tiles, and what their sums are scaled by before each.
struct Seen {
  int count;                                // tiles
  bool whole;                               // all rows see all of them
  uint32_t by_all[kTogether], by_any[kTogether], by_row[kTogether][kMaxPanel];
  bool grown[kTogether];                    // a row's maximum grew: its sums shrink
  const float *weights, *shrink;            // of row m and tile i: [m * row_stride + i * 32 ..), [m * shrink_stride + i]
  int64_t row_stride, shrink_stride;
};

// A tile of a diagonal or of a window: runs of keys that all rows see, between keys that some see and that each adds for itself.
template <class T, int M, int C>
KVPACT_INLINE void add_ragged(Vec (&sum)[M][C], const Tile<T>& tile, const Seen& seen, int i, int64_t head_dim, int64_t x) {
  const float* p = seen.weights + i * kTile;
  for (uint32_t left = seen.by_any[i]; left;) {
    int t = __builtin_ctz(left);
    const T* row = tile.value[t / kHalf] + t % kHalf * head_dim + x;
    if (seen.by_all[i] >> t & 1) {
      const uint32_t after = ~seen.by_all[i] >> t;  // its first 1 ends the run
      int stop = after ? t + __builtin_ctz(after) : static_cast<int>(kTile);
      if (t < kHalf && stop > kHalf) stop = kHalf;
      for (; t < stop; t++, row += head_dim, left &= left - 1) multiply<T, M, C>(sum, p + t, seen.row_stride, row, row + 2 * kLanes);
      continue;
    }
    left &= left - 1;
KVPACT_UNROLL
    for (int m = 0; m < M; m++) {
      if (!(seen.by_row[i][m] >> t & 1)) continue;
      Vec one[1][C];
KVPACT_UNROLL
      for (int c = 0; c < C; c++) one[0][c] = sum[m][c];
      multiply<T, 1, C>(one, p + m * seen.row_stride + t, 0, row, row + 2 * kLanes);
KVPACT_UNROLL
      for (int c = 0; c < C; c++) sum[m][c] = one[0][c];
    }
  }
}

// acc [M][head_dim] += weights times values, for C vectors of outputs from `x`: one accumulator an output, keys ascending. Keys that a
// row doesn't see are not multiplied: 0 times NaN is no 0.
template <class T, int M, int C, bool Whole, bool Ask>
KVPACT_NOINLINE static void add_values(const Tile<T>* tiles, const Seen& seen, int64_t head_dim, int64_t x, float* acc,
                                       const Ahead* ahead) {
  constexpr int kBytes = C * kLanes * static_cast<int>(sizeof(T));
  const T* type = nullptr;
  Vec sum[M][C];
KVPACT_UNROLL
  for (int m = 0; m < M; m++) {
KVPACT_UNROLL
    for (int c = 0; c < C; c++) sum[m][c] = load(acc + m * head_dim + x + c * kLanes);
KVPACT_UNROLL
    for (int c = 0; c + 1 < C; c += 2) unsettle(type, sum[m][c], sum[m][c + 1]);
  }
  const int64_t half_bytes = kHalf * head_dim * static_cast<int64_t>(sizeof(T)), part = kTile * kBytes, parts = 2 * half_bytes / part;
  for (int i = 0; i < seen.count; i++) {
    const Tile<T>& tile = tiles[i];
    const float* p = seen.weights + i * kTile;
    if (seen.grown[i]) {
KVPACT_UNROLL
      for (int m = 0; m < M; m++)
KVPACT_UNROLL
        for (int c = 0; c < C; c++) sum[m][c] = mul(sum[m][c], set1(seen.shrink[m * seen.shrink_stride + i]));
    }
    const int64_t place = x / (C * kLanes) * seen.count + i;
    if (Whole || seen.by_all[i] == kAllVisible) {
      for (int h = 0; h < kHalves; h++) {
        const T* row = tile.value[h] + x;
        const char* wanted = Ask ? wanted_from(ahead[place / parts], place % parts * part + h * part / 2, half_bytes) : nullptr;
        const int64_t spread = Ask ? ahead[place / parts].spread : 0;
        for (int t = 0; t < kHalf; t++, row += head_dim) {
          if (Ask) ask<kBytes>(wanted, spread);
          multiply<T, M, C>(sum, p + h * kHalf + t, seen.row_stride, row, row + 2 * kLanes);
        }
      }
      continue;
    }
    add_ragged(sum, tile, seen, i, head_dim, x);
  }
KVPACT_UNROLL
  for (int m = 0; m < M; m++) {
KVPACT_UNROLL
    for (int c = 0; c + 1 < C; c += 2) settle(type, sum[m][c], sum[m][c + 1]);
KVPACT_UNROLL
    for (int c = 0; c < C; c++) store(acc + m * head_dim + x + c * kLanes, sum[m][c]);
  }
}

template <class T, int M, bool Whole, bool Ask>
static void add_value_rows(const Tile<T>* tiles, const Seen& seen, int64_t head_dim, float* acc, const Ahead* ahead) {
  constexpr int C = 8 * M <= kAccumulators ? 8 : 4 * M <= kAccumulators ? 4 : 2;
  int64_t x = 0;
  for (; x + C * kLanes <= head_dim; x += C * kLanes) add_values<T, M, C, Whole, Ask>(tiles, seen, head_dim, x, acc, ahead);
  if constexpr (C > 2)
    for (; x + 2 * kLanes <= head_dim; x += 2 * kLanes) add_values<T, M, 2, Whole, false>(tiles, seen, head_dim, x, acc, ahead);
  if (x < head_dim) add_values<T, M, 1, Whole, false>(tiles, seen, head_dim, x, acc, ahead);
}

}  // namespace kvpact::KVPACT_ISA_NS
