#include "attention.hpp"

#include "attention_tile.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

constexpr int kMaxPanel = 6;     // rows that are taken through a tile together
constexpr int64_t kDirectRows = 8;  // up to so many rows read a tile where it lies; more share a widened copy

// Rows of a panel that starts when `left` rows are left. Seven and eight are split evenly.
int panel_rows(int64_t left) { return static_cast<int>(left <= kMaxPanel ? left : left <= 8 ? 4 : kMaxPanel); }

// Keys that a token sees: [0, early) and [from, stop).
struct Sight {
  int64_t early, from, stop;
};

Sight sight_of(const Rule& rule, int64_t position, int64_t seq_len) {
  int64_t stop = seq_len;
  if (rule.causal) stop = std::min(stop, std::max(position + 1, rule.prefix));
  stop = std::max<int64_t>(stop, 0);
  if (!rule.window) return {0, 0, stop};
  return {std::min(std::max(rule.sinks, rule.prefix), stop), std::max<int64_t>(position - rule.window + 1, 0), stop};
}

// Bits [from, stop) of a tile that starts at `base`.
uint32_t run_of_bits(int64_t from, int64_t stop, int64_t base) {
  from = std::clamp<int64_t>(from - base, 0, kTile);
  stop = std::clamp<int64_t>(stop - base, 0, kTile);
  return from >= stop ? 0 : static_cast<uint32_t>((uint64_t{1} << stop) - (uint64_t{1} << from));
}

uint32_t seen_of_tile(const Sight& sight, int64_t base) {
  return run_of_bits(0, sight.early, base) | run_of_bits(sight.from, sight.stop, base);
}

// A unit's state: queries packed in panels of [head_dim][rows], folds of the open segment and of those closed before.
struct Rows {
  int64_t count, head_dim, group;
  float *q, *scores, *acc, *total_acc, *keys, *values;
  Fold *fold, *total;
  Sight sight[kMaxRows];     // by token
  uint32_t visible[kMaxRows];  // by token, of the tile at hand
};

int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

template <class T>
T* take(float*& scratch, int64_t count) {
  T* p = reinterpret_cast<T*>(scratch);
  scratch += round_up(count * static_cast<int64_t>(sizeof(T) / sizeof(float)));
  return p;
}

void open_rows(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, float* scratch) {
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
    rows.sight[i] = sight_of(step.rule, step.positions[unit.first_token + i], step.seq_lens[unit.request]);
}

// Where row r (token-major, then query head) of the unit lies in q and out.
int64_t row_offset(const AttentionStep& step, const AttentionUnit& unit, int64_t r) {
  const int64_t heads = static_cast<int64_t>(step.entries.num_kv_heads) * step.group;
  return ((unit.first_token + r / step.group) * heads + static_cast<int64_t>(unit.kv_head) * step.group + r % step.group) *
         step.entries.head_dim;
}

void pack_queries(Rows& rows, const AttentionStep& step, const AttentionUnit& unit) {
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

// Calls f(std::integral_constant<int, rows>) so that loops over the rows of a panel unroll.
template <class F>
void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    default: return f(std::integral_constant<int, 6>());
  }
}

// The tile's keys for all rows, then the softmax, then the values.
template <class E, bool Ask>
void fold_tile(Rows& rows, const AttentionStep& step, const Tile<typename E::Type>& tile, const Ahead& during_keys, const Ahead& during_values) {
  const int64_t dim = rows.head_dim;
  const float* q = rows.q;
  for (int64_t r = 0; r < rows.count;) {
    const int panel = panel_rows(rows.count - r);
    uint32_t any = 0;
    for (int64_t i = r / rows.group; i <= (r + panel - 1) / rows.group; i++) any |= rows.visible[i];
    if (any) with_rows(panel, [&](auto m) { score_rows<E, m(), Ask>(tile, q, dim, rows.scores + r * kTile, during_keys); });
    q += panel * dim;
    r += panel;
  }
  for (int64_t r = 0; r < rows.count; r++)
    if (const uint32_t seen = rows.visible[r / rows.group])
      weigh(rows.scores + r * kTile, seen, step.scale, step.soft_cap, rows.fold[r], rows.acc + r * dim, dim);
  for (int64_t r = 0; r < rows.count;) {
    const uint32_t seen = rows.visible[r / rows.group];
    int64_t same = r + 1;
    while (same < rows.count && rows.visible[same / rows.group] == seen) same++;
    while (r < same) {
      const int panel = panel_rows(same - r);
      if (seen)
        with_rows(panel, [&](auto m) {
          add_value_rows<E, m(), Ask>(tile, during_values, seen, rows.scores + r * kTile, dim, rows.acc + r * dim);
        });
      r += panel;
    }
  }
}

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
Blocks<T> blocks_of(const AttentionStep& step, const AttentionUnit& unit) {
  const EntryStorage& e = step.entries;
  const int64_t head = unit.kv_head * e.head_stride;
  return {static_cast<const T*>(e.keys) + head, static_cast<const T*>(e.values) + head, step.block_table + unit.request * step.table_stride,
          e.block_stride, e.block_size, e.head_dim};
}

// The tile where it lies (the block size is a multiple of 8).
template <class T>
Tile<T> tile_in_place(const Blocks<T>& blocks, int64_t base, uint32_t any) {
  Tile<T> tile;
  tile.key_stride = blocks.size;
  const int readable = __builtin_ctz(any) / kLanes;
  for (int c = 0; c < kColumns; c++) {
    const int64_t position = base + (any >> (c * kLanes) & 0xff ? c : readable) * kLanes;
    tile.key[c] = blocks.key(position);
    tile.value[c] = blocks.value(position);
  }
  return tile;
}

// The tile's values and keys as runs of memory. Vectors of keys share a block in twos, in fours or not at all.
template <class T>
Ahead values_of(const Tile<T>& tile) {
  Ahead ahead;
  for (int c = 0; c < kColumns; c++) ahead.at[c] = reinterpret_cast<const char*>(tile.value[c]);
  ahead.row = kTile * sizeof(T);
  return ahead;
}

template <class T>
Ahead keys_of(const Tile<T>& tile, int64_t head_dim) {
  const int together = static_cast<int>(std::min<int64_t>(tile.key_stride / kLanes, kColumns));
  const int64_t row = std::max(tile.key_stride, kTile);
  Ahead ahead;
  for (int c = 0; c < kColumns; c++)
    ahead.at[c] = reinterpret_cast<const char*>(tile.key[c / together * together] + c % together * (head_dim / kColumns) * row);
  ahead.row = row * static_cast<int64_t>(sizeof(T));
  return ahead;
}

// The tile widened to fp32, whatever the block size. Keys that no row sees are left as they are: they are masked.
template <class E>
Tile<float> tile_copied(const Blocks<typename E::Type>& blocks, int64_t base, uint32_t any, float* keys, float* values) {
  Tile<float> tile;
  tile.key_stride = kTile;
  for (int c = 0; c < kColumns; c++) tile.key[c] = keys + c * kLanes, tile.value[c] = values + c * kLanes * blocks.head_dim;
  const bool whole = blocks.size % kLanes == 0;
  typename E::Type wide[kLanes] = {};
  alignas(32) float lanes[kLanes];
  for (int c = 0; c < kColumns; c++) {
    const uint32_t seen = any >> (c * kLanes) & 0xff;
    if (seen && whole) {
      const auto* key = blocks.key(base + c * kLanes);
      for (int64_t d = 0; d < blocks.head_dim; d++) store(keys + d * kTile + c * kLanes, E::get(key + d * blocks.size));
    }
    for (uint32_t left = seen; left; left &= left - 1) {
      const int t = c * kLanes + __builtin_ctz(left);
      const auto* value = blocks.value(base + t);
      for (int64_t x = 0; x < blocks.head_dim; x += kLanes) store(values + t * blocks.head_dim + x, E::get(value + x));
      if (whole) continue;
      const auto* key = blocks.key(base + t);
      for (int64_t d = 0; d < blocks.head_dim; d++) {
        wide[0] = key[d * blocks.size];
        store(lanes, E::get(wide));
        keys[d * kTile + t] = lanes[0];
      }
    }
  }
  return tile;
}

// Sets what each token sees of the tile; returns what any of them sees.
uint32_t look(Rows& rows, int64_t base) {
  uint32_t any = 0;
  for (int64_t i = 0; i < rows.count / rows.group; i++) any |= rows.visible[i] = seen_of_tile(rows.sight[i], base);
  return any;
}

template <class E>
void fold_segment(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, int64_t segment) {
  using T = typename E::Type;
  for (int64_t r = 0; r < rows.count; r++) rows.fold[r] = {-__builtin_inff(), 0.0f};
  std::fill(rows.acc, rows.acc + rows.count * rows.head_dim, 0.0f);
  int64_t stop = 0, from = INT64_MAX, early = 0;
  for (int64_t i = 0; i < unit.num_tokens; i++) {
    stop = std::max(stop, rows.sight[i].stop);
    from = std::min(from, rows.sight[i].from);
    early = std::max(early, rows.sight[i].early);
  }
  stop = std::min(stop, (segment + 1) * kSegment);
  const Blocks<T> blocks = blocks_of<T>(step, unit);
  const bool direct = rows.count <= kDirectRows && blocks.size % kLanes == 0;
  for (int64_t base = segment * kSegment; base < stop; base += kTile) {
    if (base >= early && base + kTile <= from) {  // between what is seen early and the window
      base = std::max(base, from / kTile * kTile - kTile);
      continue;
    }
    const uint32_t any = look(rows, base);
    if (!any) continue;
    if (direct) {
      const Tile<T> tile = tile_in_place(blocks, base, any);
      const int64_t after = base + kTile;
      const Tile<T> next = after < stop ? tile_in_place(blocks, after, run_of_bits(after, stop, after)) : tile;
fold_tile<E, true>(rows, step, tile, values_of(tile), keys_of(next, rows.head_dim));
    } else {
      const Tile<float> tile = tile_copied<E>(blocks, base, any, rows.keys, rows.values);
      fold_tile<F32, false>(rows, step, tile, {}, {});
    }
  }
}

// total (largest, sum, acc) takes in a later segment's. Both factors are at most 1, one of them is exactly 1.
void join(Fold& total, float* total_acc, const Fold& fold, const float* acc, int64_t head_dim) {
  if (fold.sum == 0) return;
  if (total.sum == 0) {
    total = fold;
    std::copy(acc, acc + head_dim, total_acc);
    return;
  }
  const float largest = std::max(total.largest, fold.largest);
  const float a = exp_nonpositive(total.largest - largest), b = exp_nonpositive(fold.largest - largest);
  for (int64_t x = 0; x < head_dim; x += kLanes) store(total_acc + x, fma(load(acc + x), set1(b), mul(load(total_acc + x), set1(a))));
  total = {largest, fma(fold.sum, b, total.sum * a)};
}

void write_row(const Fold& total, const float* acc, int64_t head_dim, float* out) {
  const Vec inverse = set1(total.sum == 0 ? 0.0f : 1.0f / total.sum);
  for (int64_t x = 0; x < head_dim; x += kLanes) store(out + x, mul(load(acc + x), inverse));
}

void fold_segment_of(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, int64_t segment) {
  switch (step.entries.dtype) {
    case DType::f32: return fold_segment<F32>(rows, step, unit, segment);
    case DType::bf16: return fold_segment<BF16>(rows, step, unit, segment);
    case DType::f16: return fold_segment<F16>(rows, step, unit, segment);
  }
}

}  // namespace

int64_t attention_scratch(int64_t rows, int64_t head_dim) {
  return rows * (3 * head_dim + kTile + 4) + 2 * head_dim * kTile + 8 * 16;
}

void attend(const AttentionStep& step, const AttentionUnit& unit, float* scratch) {
  Rows rows;
  open_rows(rows, step, unit, scratch);
  pack_queries(rows, step, unit);
  const int64_t dim = rows.head_dim;
  if (unit.partial) {
    fold_segment_of(rows, step, unit, unit.segment);
    float* to = unit.partial + unit.segment * rows.count * (dim + 2);
    for (int64_t r = 0; r < rows.count; r++, to += dim + 2) {
      to[0] = rows.fold[r].largest, to[1] = rows.fold[r].sum;
      std::copy(rows.acc + r * dim, rows.acc + (r + 1) * dim, to + 2);
    }
    return;
  }
  for (int64_t r = 0; r < rows.count; r++) rows.total[r] = {0.0f, 0.0f};
  std::fill(rows.total_acc, rows.total_acc + rows.count * dim, 0.0f);
  for (int64_t segment = 0; segment < unit.num_segments; segment++) {
    fold_segment_of(rows, step, unit, segment);
    for (int64_t r = 0; r < rows.count; r++) join(rows.total[r], rows.total_acc + r * dim, rows.fold[r], rows.acc + r * dim, dim);
  }
  for (int64_t r = 0; r < rows.count; r++) write_row(rows.total[r], rows.total_acc + r * dim, dim, step.out + row_offset(step, unit, r));
}

void combine(const AttentionStep& step, const AttentionUnit& unit, float* scratch) {
  const int64_t dim = step.entries.head_dim, count = unit.num_tokens * step.group;
  for (int64_t r = 0; r < count; r++) {
    Fold total = {0.0f, 0.0f};
    std::fill(scratch, scratch + dim, 0.0f);
    for (int64_t segment = 0; segment < unit.num_segments; segment++) {
      const float* from = unit.partial + (segment * count + r) * (dim + 2);
      join(total, scratch, {from[0], from[1]}, from + 2, dim);
    }
    write_row(total, scratch, dim, step.out + row_offset(step, unit, r));
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
