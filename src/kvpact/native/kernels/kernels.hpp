// What a build for one instruction set offers: plain structs, and a table of functions that run on one thread.
// Callers share work out over units (panels of outputs, query blocks); no function here splits a sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_types.hpp"
#include "dtype.hpp"
#include "row_types.hpp"

namespace kvpact {

constexpr int64_t kPanelWidth = 16;  // outputs whose weights lie side by side in a packed matrix

// Weights [out_features, in_features], packed by Kernels::linear_pack of the same table. Panels are independent and
// contiguous: panel p holds outputs [16 p, 16 p + 16), for each k ascending; outputs beyond out_features are zero.
struct PackedLinear {
  const void* data;  // linear_packed_bytes bytes, best aligned to a cache line and on large pages
  int64_t out_features;
  int64_t in_features;
  DType dtype;
};

// Packs some panels of row-major weights; calls for different panels of one matrix may run at the same time.
struct LinearPackCall {
  const void* weight;  // [out_features, in_features], of dtype
  int64_t ldw;         // elements from one output's weights to the next's
  int64_t out_features;
  int64_t in_features;
  DType dtype;
  int64_t panel_begin, panel_end;
  void* packed;  // of linear_packed_bytes
};

// y[r, o] = ((sum over k ascending of x[r, k] * w[o, k]) + bias[o]) + residual[r, o], for the outputs of some panels.
// Leading dimensions count floats. y overlaps neither x nor residual: partial sums lie in y between blocks of k.
struct LinearCall {
  const float* x;  // [rows, in_features]
  int64_t ldx;
  int64_t rows;
  PackedLinear weight;
  int64_t panel_begin, panel_end;
  float* y;  // [rows, out_features]; only columns of the panels are written
  int64_t ldy;
  const float* bias;      // [out_features], or null
  const float* residual;  // [rows, out_features], or null
  int64_t ldr;
};

struct Kernels {
  const char* isa;
  // Outputs and inputs of any number from 1.
  int64_t (*linear_packed_bytes)(int64_t out_features, int64_t in_features, DType dtype);
  void (*linear_pack)(const LinearPackCall& call);
  void (*linear)(const LinearCall& call);
  // What each does is written in attention.hpp, rows.hpp, sample.hpp, draw.hpp and probe.hpp.
  int64_t (*attention_scratch)(int64_t rows, int64_t head_dim);
  void (*attend)(const AttentionStep& step, const AttentionUnit& unit, float* scratch);
  void (*combine)(const AttentionStep& step, const AttentionUnit& unit, float* scratch);
  void (*write_entries)(const EntryStorage& entries, const float* keys, const float* values, const int64_t* slots, int64_t rows,
                        WriteReport* report);
  void (*embed)(const void* table, DType dtype, const int64_t* ids, int64_t rows, int64_t width, float* out);
  void (*rms_norm)(const float* x, int64_t stride, const float* weight, float eps, int64_t rows, int64_t width, float* out,
                   int64_t out_stride);
  void (*layer_norm)(const float* x, int64_t stride, const float* weight, const float* bias, float eps, int64_t rows, int64_t width,
                     float* out, int64_t out_stride);
  void (*rotary_table)(const float* inverse_frequency, int64_t half, int64_t first_position, int64_t num_positions,
                       float attention_factor, float* cos, float* sin);
  void (*rotate)(float* x, int64_t stride, int64_t heads, int64_t head_dim, int64_t rotary_dim, const float* cos, const float* sin,
                 const int64_t* positions, int64_t rows);
  void (*activate)(Activation kind, const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width, float* out,
                   int64_t out_stride);
  void (*add_rows)(const float* a, const float* b, int64_t count, float* out);
  RowFacts (*row_facts)(const float* logits, int64_t vocab);
  int64_t (*exp_sum_scratch)(int64_t vocab);
  double (*exp_sum)(const float* logits, int64_t vocab, float largest, double* scratch);
  int64_t (*rank_of)(const float* logits, int64_t vocab, int64_t token);
  int64_t (*order_scratch)(int64_t vocab);
  void (*first_of)(const float* logits, int64_t vocab, int64_t count, uint64_t* scratch, int64_t* ids);
  int64_t (*draw)(const DrawCall& call, uint64_t* scratch, double* sums);
  int64_t (*multiply_adds)(int64_t rounds, float* sink);
  void (*read_lines)(const void* data, int64_t num_bytes, const void* next, float* sink);
};

constexpr int64_t num_panels(int64_t out_features) { return (out_features + kPanelWidth - 1) / kPanelWidth; }

namespace avx512 {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace baseline {
const Kernels& table();
}

}  // namespace kvpact
