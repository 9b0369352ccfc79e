#include "attention.hpp"

#include "attention_blocks.hpp"
#include "attention_rows.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

constexpr int64_t kDirectRows = 8;  // up to so many rows read a tile where it lies; more share a widened copy

size_t bytes_of(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

// The tile's keys for all rows, then the softmax, then the values.
template <class T, bool Ask>
void fold_tile(Rows& rows, const AttentionStep& step, const Tile<T>& tile, const Ahead& during_keys,
               const Ahead& during_values) {
  const int64_t dim = rows.head_dim;
  const float* q = rows.q;
  for (int64_t r = 0; r < rows.count;) {
    const int panel = panel_rows(rows.count - r);
    uint32_t any = 0;
    for (int64_t i = r / rows.group; i <= (r + panel - 1) / rows.group; i++) any |= rows.visible[i];
    if (any) with_rows(panel, [&](auto m) { score_rows<T, m(), Ask>(tile, q, dim, rows.scores + r * kTile, during_keys); });
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
          add_value_rows<T, m(), Ask>(tile, during_values, seen, rows.scores + r * kTile, dim, rows.acc + r * dim);
        });
      r += panel;
    }
  }
}

template <class T>
void fold_segment(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, int64_t segment) {
  for (int64_t r = 0; r < rows.count; r++) rows.fold[r] = {-__builtin_inff(), 0.0f};
  memset(rows.acc, 0, bytes_of(rows.count * rows.head_dim));
  int64_t stop = 0, from = INT64_MAX, early = 0;
  for (int64_t i = 0; i < unit.num_tokens; i++) {
    stop = larger(stop, rows.sight[i].stop);
    from = smaller(from, rows.sight[i].from);
    early = larger(early, rows.sight[i].early);
  }
  stop = smaller(stop, (segment + 1) * kSegment);
  const Blocks<T> blocks = blocks_of<T>(step, unit);
  const bool direct = rows.count <= kDirectRows && blocks.size % kLanes == 0;
  for (int64_t base = segment * kSegment; base < stop; base += kTile) {
    if (base >= early && base + kTile <= from) {  // between what is seen early and the window
      base = larger(base, from / kTile * kTile - kTile);
      continue;
    }
    const uint32_t any = look(rows, base);
    if (!any) continue;
    if (direct) {
      const Tile<T> tile = tile_in_place(blocks, base, any);
      const int64_t after = base + kTile;
      const Tile<T> next = after < stop ? tile_in_place(blocks, after, run_of_bits(after, stop, after)) : tile;
      fold_tile<T, true>(rows, step, tile, values_of(tile), keys_of(next, rows.head_dim));
    } else {
      const Tile<float> tile = tile_copied(blocks, base, any, rows.keys, rows.values);
      fold_tile<float, false>(rows, step, tile, {}, {});
    }
  }
}

// total (largest, sum, acc) takes in a later segment's. Both factors are at most 1, one of them is exactly 1; an empty one changes no bit.
void join(Fold& total, float* total_acc, const Fold& fold, const float* acc, int64_t head_dim) {
  if (total.sum == 0) {
    total = fold;
    memcpy(total_acc, acc, bytes_of(head_dim));
    return;
  }
  const float largest = larger(total.largest, fold.largest);
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
    case DType::f32: return fold_segment<float>(rows, step, unit, segment);
    case DType::bf16: return fold_segment<bf16_t>(rows, step, unit, segment);
    case DType::f16: return fold_segment<f16_t>(rows, step, unit, segment);
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
      memcpy(to + 2, rows.acc + r * dim, bytes_of(dim));
    }
    return;
  }
  for (int64_t r = 0; r < rows.count; r++) rows.total[r] = {0.0f, 0.0f};
  memset(rows.total_acc, 0, bytes_of(rows.count * dim));
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
    memset(scratch, 0, bytes_of(dim));
    for (int64_t segment = 0; segment < unit.num_segments; segment++) {
      const float* from = unit.partial + (segment * count + r) * (dim + 2);
      join(total, scratch, {from[0], from[1]}, from + 2, dim);
    }
    write_row(total, scratch, dim, step.out + row_offset(step, unit, r));
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
