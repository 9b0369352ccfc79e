// Every output starts at +0 and adds its products by FMA, k ascending, in one accumulator; partial sums wait in y, in
// fp32, between blocks of k, which changes nothing. Then bias, then residual, each rounded once. The number of rows
// chooses the shape of a tile and nothing else, so a row has the same bits in any company.
#include "linear.hpp"

#include "simd.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

constexpr int kWidth = static_cast<int>(kPanelWidth);
constexpr int kTileRows = kAccumulators / 2;  // 6 x 16 with AVX2: twelve FMA to eight loads; 4 x 24 was no faster
constexpr int64_t kBlockOfK = 768;            // six rows of x are 18 KB and stay in L1 while a group passes; 256 spilled too often
constexpr int64_t kGroup = 8;                 // panels that all rows work through before the next: 384 KB of weights, in L2
constexpr int64_t kFewRows = 96;              // up to so many, memory is as slow as the products: a small group fetches the next one
constexpr int64_t kGroupOfFew = 2;            // a tenth to a fifth faster at 4 to 64 rows on two threads
constexpr int64_t kSideBySide = 4;            // panels of a tile of one to three rows; it needs whole groups of them
constexpr int64_t kPrefetchBytes = 2048;      // how far ahead within a panel

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

KVPACT_INLINE void load_row(const float* w, Vec& a, Vec& b) {
  a = load(w);
  b = load(w + kLanes);
}
KVPACT_INLINE void load_row(const f16_t* w, Vec& a, Vec& b) {
  a = load(w);
  b = load(w + kLanes);
}
KVPACT_INLINE void load_row(const bf16_t* w, Vec& a, Vec& b) { load_interleaved(w, a, b); }

// Where output `o` of a panel lies among the 16 weights of one k.
int position(const float*, int o) { return o; }
int position(const f16_t*, int o) { return o; }
int position(const bf16_t*, int o) { return o < kLanes ? 2 * o : 2 * (o - kLanes) + 1; }

// One block of k for the rows of one tile and some neighbouring panels.
template <class T>
struct Block {
  const float* x;
  int64_t ldx;
  const T* w;  // first k of the first panel
  int64_t panel_stride;
  int64_t num_k;
  bool first, last;  // the first block starts from +0, the last one adds bias and residual
  float* y;
  int64_t ldy;
  const float* bias;
  const float* residual;
  int64_t ldr;
  const char* ahead;  // where this tile's share of the next block's first panel begins
  int64_t ahead_step;  // bytes of it for each k
};

template <class T>
Block<T> at_panel(Block<T> b, int64_t panel) {
  b.w += panel * b.panel_stride;
  b.ahead += panel * b.panel_stride * static_cast<int64_t>(sizeof(T));
  b.y += panel * kWidth;
  if (b.bias) b.bias += panel * kWidth;
  if (b.residual) b.residual += panel * kWidth;
  return b;
}

template <class T, int Rows, int Panels>
KVPACT_INLINE void finish_tile(const Block<T>& b, Vec (&sum)[Rows][2 * Panels]) {
  KVPACT_UNROLL for (int r = 0; r < Rows; r++) {
    KVPACT_UNROLL for (int j = 0; j < 2 * Panels; j++) {
      Vec s = sum[r][j];
      if (b.last && b.bias) s = add(s, load(b.bias + j * kLanes));
      if (b.last && b.residual) s = add(s, load(b.residual + r * b.ldr + j * kLanes));
      store(b.y + r * b.ldy + j * kLanes, s);
    }
  }
}

// Alone, a panel is fetched some way ahead, and a little of the next block with it: the tiles of a block share that out, so
// that memory works while they compute (a quarter faster at 16 rows). Of several panels side by side the hardware keeps
// track by itself; only 16-bit ones, which end sooner, gain from fetching the neighbours.
template <class T, int Panels>
KVPACT_INLINE void prefetch_weights(const T* w, const T* neighbour, const char* ahead) {
  if (Panels == 1) {
    prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes);
    prefetch_l2(ahead);
  } else if (sizeof(T) == 2) {
    prefetch_l2(neighbour);
  }
}

template <class T, int Rows, int Panels>
KVPACT_NOINLINE void tile(const Block<T>& b) {
  Vec sum[Rows][2 * Panels];
  KVPACT_UNROLL for (int r = 0; r < Rows; r++) {
    KVPACT_UNROLL for (int j = 0; j < 2 * Panels; j++) sum[r][j] = b.first ? zero() : load(b.y + r * b.ldy + j * kLanes);
  }
  const float* x = b.x;
  const T* w = b.w;
  const char* ahead = b.ahead;
  const int64_t ldx = b.ldx, stride = b.panel_stride, num_k = b.num_k, ahead_step = b.ahead_step;
  for (int64_t k = 0; k < num_k; k++, w += kWidth, ahead += ahead_step) {
    KVPACT_UNROLL for (int p = 0; p < Panels; p++) {
      Vec left, right;
      load_row(w + p * stride, left, right);
      prefetch_weights<T, Panels>(w, w + (p + Panels) * stride, ahead);
      KVPACT_UNROLL for (int r = 0; r < Rows; r++) {
        Vec value = set1(x[r * ldx + k]);
        sum[r][2 * p] = fma(value, left, sum[r][2 * p]);
        sum[r][2 * p + 1] = fma(value, right, sum[r][2 * p + 1]);
      }
    }
  }
  finish_tile<T, Rows, Panels>(b, sum);
}

// With few rows, several panels side by side keep enough sums in flight to hide the latency of FMA. Widening 16 bits
// takes two registers more, and one sum that doesn't fit into the registers costs half the speed.
template <class T, int Rows>
void full_panels(const Block<T>& b, int64_t num_full) {
  constexpr int kFit = (kAccumulators - (sizeof(T) == 2 ? 2 : 0)) / (2 * Rows);
  constexpr int kPanels = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  int64_t p = 0;
  for (; p + kPanels <= num_full; p += kPanels) tile<T, Rows, kPanels>(at_panel(b, p));
  for (; p < num_full; p++) tile<T, Rows, 1>(at_panel(b, p));
}

// The last panel of a matrix whose outputs aren't a multiple of 16: the same tile on padded lanes.
template <class T, int Rows>
void padded_panel(const Block<T>& b, int64_t num_outputs) {
  float y[Rows][kWidth] = {}, residual[Rows][kWidth] = {}, bias[kWidth] = {};
  const size_t bytes = static_cast<size_t>(num_outputs) * sizeof(float);
  for (int r = 0; r < Rows; r++) {
    if (!b.first) memcpy(y[r], b.y + r * b.ldy, bytes);
    if (b.residual) memcpy(residual[r], b.residual + r * b.ldr, bytes);
  }
  if (b.bias) memcpy(bias, b.bias, bytes);
  Block<T> padded = b;
  padded.y = y[0];
  padded.ldy = padded.ldr = kWidth;
  if (b.residual) padded.residual = residual[0];
  if (b.bias) padded.bias = bias;
  tile<T, Rows, 1>(padded);
  for (int r = 0; r < Rows; r++) memcpy(b.y + r * b.ldy, y[r], bytes);
}

template <class T, int Rows>
void rows_of_tile(const Block<T>& b, int64_t num_full, int64_t num_padded) {
  full_panels<T, Rows>(b, num_full);
  if (num_padded) padded_panel<T, Rows>(at_panel(b, num_full), num_padded);
}

template <class T, int Rows = kTileRows>
void some_rows(int64_t rows, const Block<T>& b, int64_t num_full, int64_t num_padded) {
  if (rows == Rows) return rows_of_tile<T, Rows>(b, num_full, num_padded);
  if constexpr (Rows > 1) some_rows<T, Rows - 1>(rows, b, num_full, num_padded);
}

// Block `i` of `num_blocks` of k, for panels [p0, p1). What follows it is the group's next block, or the next group.
template <class T>
Block<T> block_of(const LinearCall& call, int64_t p0, int64_t p1, int64_t i, int64_t num_blocks) {
  const int64_t num_in = call.weight.in_features, k0 = num_in * i / num_blocks, k1 = num_in * (i + 1) / num_blocks;
  Block<T> b;
  b.x = call.x + k0;
  b.ldx = call.ldx;
  b.panel_stride = num_in * kWidth;
  b.w = static_cast<const T*>(call.weight.data) + p0 * b.panel_stride + k0 * kWidth;
  b.num_k = k1 - k0;
  b.first = k0 == 0;
  b.last = k1 == num_in;
  b.y = call.y + p0 * kWidth;
  b.ldy = call.ldy;
  b.bias = call.bias ? call.bias + p0 * kWidth : nullptr;
  b.residual = call.residual ? call.residual + p0 * kWidth : nullptr;
  b.ldr = call.ldr;
  const T* next = b.w;
  if (!b.last) next += b.num_k * kWidth;
  if (b.last && p1 < call.panel_end) next += (p1 - p0) * b.panel_stride - k0 * kWidth;
  b.ahead = reinterpret_cast<const char*>(next);
  return b;
}

// All rows, a tile at a time. Each tile fetches its share of the next block's weights.
template <class T>
void rows_of_block(int64_t rows, Block<T> b, int64_t num_full, int64_t num_padded) {
  const int64_t num_tiles = rows < kTileRows ? 1 : rows / kTileRows;
  const int64_t bytes_of_k = kWidth * static_cast<int64_t>(sizeof(T));
  b.ahead_step = (bytes_of_k + num_tiles - 1) / num_tiles;
  for (int64_t r = 0; r < rows; r += kTileRows) {
    some_rows(least(rows - r, kTileRows), b, num_full, num_padded);
    b.x += kTileRows * b.ldx;
    b.y += kTileRows * b.ldy;
    if (b.residual) b.residual += kTileRows * b.ldr;
    b.ahead += b.num_k * bytes_of_k / num_tiles;
  }
}

// Six rows of x stay in L1 and a group's block of weights in L2 while every tile of rows passes: each weight comes from
// memory once, and x needs no packing even where its rows lie a multiple of the cache's period apart.
template <class T>
void all_rows(const LinearCall& call) {
  const int64_t num_out = call.weight.out_features;
  const int64_t num_blocks = (call.weight.in_features + kBlockOfK - 1) / kBlockOfK;
  const int64_t group = call.rows >= kSideBySide && call.rows <= kFewRows ? kGroupOfFew : kGroup;
  for (int64_t p0 = call.panel_begin; p0 < call.panel_end; p0 += group) {
    const int64_t p1 = least(p0 + group, call.panel_end);
    const int64_t full = least(p1, num_out / kWidth) - p0;
    const int64_t padded = p1 * kWidth > num_out ? num_out % kWidth : 0;
    for (int64_t i = 0; i < num_blocks; i++) rows_of_block(call.rows, block_of<T>(call, p0, p1, i, num_blocks), full, padded);
  }
}

template <class T>
void pack(const LinearPackCall& call) {
  const T* weight = static_cast<const T*>(call.weight);
  for (int64_t panel = call.panel_begin; panel < call.panel_end; panel++) {
    T* packed = static_cast<T*>(call.packed) + panel * call.in_features * kWidth;
    for (int o = 0; o < kWidth; o++) {
      const int64_t output = panel * kWidth + o;
      const T* row = weight + output * call.ldw;
      T* to = packed + position(packed, o);
      for (int64_t k = 0; k < call.in_features; k++) to[k * kWidth] = output < call.out_features ? row[k] : T{};
    }
  }
}

}  // namespace

int64_t linear_packed_bytes(int64_t out_features, int64_t in_features, DType dtype) {
  return num_panels(out_features) * kPanelWidth * in_features * (dtype == DType::f32 ? 4 : 2);
}

void linear_pack(const LinearPackCall& call) {
  switch (call.dtype) {
    case DType::f32: return pack<float>(call);
    case DType::bf16: return pack<bf16_t>(call);
    case DType::f16: return pack<f16_t>(call);
  }
}

void linear(const LinearCall& call) {
  switch (call.weight.dtype) {
    case DType::f32: return all_rows<float>(call);
    case DType::bf16: return all_rows<bf16_t>(call);
    case DType::f16: return all_rows<f16_t>(call);
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
