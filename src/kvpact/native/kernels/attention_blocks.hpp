// Where a tile's entries lie among the blocks of one request and one key head.
#pragma once

#include "attention_tile.hpp"

namespace kvpact::KVPACT_ISA_NS {

// A layer's entries of one request and one key head.
template <class T>
struct Blocks {
  const T *keys, *values;
  const int64_t* table;
  int64_t stride, size, head_dim;

  const T* key(int64_t position) const { return keys + table[position / size] * stride + position % size; }
  const T* value(int64_t position) const { return values + table[position / size] * stride + position % size * head_dim; }
};

template <class T>
static inline Blocks<T> blocks_of(const AttentionStep& step, const AttentionUnit& unit) {
  const EntryStorage& e = step.entries;
  const int64_t head = unit.kv_head * e.head_stride;
  return {static_cast<const T*>(e.keys) + head, static_cast<const T*>(e.values) + head, step.block_table + unit.request * step.table_stride,
          e.block_stride, e.block_size, e.head_dim};
}

// The tile where it lies (the block size is a multiple of 16).
template <class T>
static inline Tile<T> tile_in_place(const Blocks<T>& blocks, int64_t base, uint32_t any) {
  Tile<T> tile;
  tile.key_stride = blocks.size;
  const int readable = __builtin_ctz(any) / kHalf;
  for (int h = 0; h < kHalves; h++) {
    const int64_t position = base + (any >> (h * kHalf) & 0xffff ? h : readable) * kHalf;
    tile.key[h] = blocks.key(position);
    tile.value[h] = blocks.value(position);
  }
  return tile;
}

template <class T>
static inline Ahead values_of(const Tile<T>& tile) {
  return {{reinterpret_cast<const char*>(tile.value[0]), reinterpret_cast<const char*>(tile.value[1])}, 1};
}

// A block of 32 is one run of lines; of a larger one, a tile's keys are some lines of each row.
template <class T>
static inline Ahead keys_of(const Tile<T>& tile, int64_t head_dim) {
  const char *left = reinterpret_cast<const char*>(tile.key[0]), *right = reinterpret_cast<const char*>(tile.key[1]);
  if (tile.key_stride == kHalf) return {{left, right}, 1};
  if (tile.key_stride == kTile) return {{left, left + kHalf * head_dim * static_cast<int64_t>(sizeof(T))}, 1};
  const int64_t row = tile.key_stride * static_cast<int64_t>(sizeof(T));
  return {{left, sizeof(T) == 4 ? right : left + row}, tile.key_stride / kHalf};
}

// The tile widened to fp32, whatever the block size. Keys that no row sees are left as they are: they are masked.
template <class T>
static inline Tile<float> tile_copied(const Blocks<T>& blocks, int64_t base, uint32_t any, float* keys, float* values) {
  const int64_t dim = blocks.head_dim;
  const Tile<float> tile = {{keys, keys + kHalf}, {values, values + kHalf * dim}, kTile};
  const bool whole = blocks.size % kLanes == 0;
  for (int c = 0; c < kColumns && whole; c++) {
    if (!(any >> (c * kLanes) & 0xff)) continue;
    const T* key = blocks.key(base + c * kLanes);
    for (int64_t d = 0; d < dim; d++) store(keys + d * kTile + c * kLanes, load(key + d * blocks.size));
  }
  for (uint32_t left = any; left; left &= left - 1) {
    const int t = __builtin_ctz(left);
    const T *key = blocks.key(base + t), *value = blocks.value(base + t);
    for (int64_t x = 0; x < dim; x += kLanes) store(values + t * dim + x, load(value + x));
    for (int64_t d = 0; d < dim && !whole; d++) keys[d * kTile + t] = widen(key[d * blocks.size]);
  }
  return tile;
}

}  // namespace kvpact::KVPACT_ISA_NS
