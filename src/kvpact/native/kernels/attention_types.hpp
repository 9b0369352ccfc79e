// What attention is called with: plain C types, the same for every instruction set.
#pragma once

#include <cstdint>

#include "dtype.hpp"

namespace kvpact {

constexpr int64_t kTile = 32;        // absolute positions whose scores are reduced together, whatever the block size
constexpr int64_t kSegment = 1024;   // absolute positions after which the running fold is closed
constexpr int64_t kMaxRows = 128;    // (token, query head) rows of one unit
constexpr int64_t kMaxHeadDim = 256;

// One layer's entries. Key (block, head, d, offset) lies at keys[block * block_stride + head * head_stride + d * block_size + offset],
// value (block, head, offset, d) at values[block * block_stride + head * head_stride + offset * head_dim + d]; strides in elements.
struct EntryStorage {
  void* keys;
  void* values;
  int64_t block_stride, head_stride;
  int64_t block_size;  // >= 1
  int64_t num_blocks;
  int32_t num_kv_heads;
  int32_t head_dim;  // a multiple of 8, at most kMaxHeadDim
  DType dtype;
};

// The rule of visibility.py. Key k is seen by the query at q when k < seq_len, (not causal or k <= q or k < prefix), and
// (no window or q - k < window or k < sinks or k < prefix).
struct Rule {
  int64_t window;  // 0: none
  int64_t sinks, prefix;
  int32_t causal;
};

// A layer's attention over one ragged step: R requests, T tokens, H = num_kv_heads * group query heads.
struct AttentionStep {
  const float* q;              // [T, H, D], rotated
  float* out;                  // [T, H, D]; 0 for a token that sees no key
  EntryStorage entries;
  const int64_t* block_table;  // [R, table_stride]; only blocks with a visible key are read
  int64_t table_stride;
  const int64_t* query_start;  // [R + 1], cumulative
  const int64_t* seq_lens;     // [R]
  const int64_t* positions;    // [T]
  const Rule* rules;           // [R], one for each request
  float scale;
  float soft_cap;  // 0: none
  int32_t group;   // query heads per key head, at most kMaxRows
};

// Work that one thread does alone: tokens [first_token, first_token + num_tokens) of the step against one key head.
// partial is null: all segments are folded here and `out` is written. Else only `segment` is, into its place in `partial`
// ([num_segments][num_tokens * group][head_dim + 2]), and `combine` finishes the tokens once all segments are there.
struct AttentionUnit {
  int64_t request;
  int64_t first_token, num_tokens;
  int64_t segment, num_segments;
  float* partial;
  int32_t kv_head;
};

// What write_entries found among the rows it stored (PAD_SLOT rows are not looked at).
struct WriteReport {
  int64_t num_not_finite;  // values, keys and values together
  int64_t first_bad_slot;  // of the first row with such a value; -1: none
};

}  // namespace kvpact
