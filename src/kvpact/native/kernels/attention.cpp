#include "attention.hpp"

#include "attention_blocks.hpp"
#include "attention_rows.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

size_t bytes_of(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

// Tiles that go together, ascending, and what each token sees of them.
template <class T>
struct Batch {
  int count;
  Tile<T> tiles[kTogether];
  uint32_t any[kTogether];
  uint32_t visible[kTogether * kDirectRows > kMaxRows ? kTogether * kDirectRows : kMaxRows];  // [count][tokens]
};

// Positions of a segment that may be seen and have not been folded: [base, stop), except between `early` and `from`.
struct Course {
  int64_t base, stop, early, from;
};

Course course_of(const Rows& rows, const AttentionUnit& unit, int64_t segment) {
  Course course{segment * kSegment, 0, 0, INT64_MAX};
  for (int64_t i = 0; i < unit.num_tokens; i++) {
    course.stop = larger(course.stop, rows.sight[i].stop);
    course.from = smaller(course.from, rows.sight[i].from);
    course.early = larger(course.early, rows.sight[i].early);
  }
  course.stop = smaller(course.stop, course.base + kSegment);
  return course;
}

// The next tiles of the course that a row sees, up to `most`.
template <class T, class Place>
void gather(const Rows& rows, Course& course, int most, Batch<T>& batch, Place&& place) {
  const int64_t tokens = rows.count / rows.group;
  batch.count = 0;
  for (; batch.count < most && course.base < course.stop; course.base += kTile) {
    const int64_t base = course.base;
    if (base >= course.early && base + kTile <= course.from) {
      course.base = larger(base, course.from / kTile * kTile - kTile);
      continue;
    }
    uint32_t any = 0, *visible = batch.visible + batch.count * tokens;
    for (int64_t i = 0; i < tokens; i++) any |= visible[i] = seen_of_tile(rows.sight[i], base);
    if (!any) continue;
    batch.any[batch.count] = any;
    batch.tiles[batch.count++] = place(base, any);
  }
}

// What rows [first, first + panel) see.
template <class T>
Seen seen_by_panel(const Rows& rows, const Batch<T>& batch, int64_t first, int panel) {
  Seen seen{};
  seen.count = batch.count;
  seen.whole = true;
  seen.row_stride = kTile * rows.together;
  seen.weights = rows.scores + first * seen.row_stride;
  seen.shrink = rows.shrink + first * rows.together;
  seen.shrink_stride = rows.together;
  for (int i = 0; i < batch.count; i++) {
    const uint32_t* visible = batch.visible + i * (rows.count / rows.group);
    seen.by_all[i] = kAllVisible;
    for (int m = 0; m < panel; m++) {
      const uint32_t by_row = visible[rows.token[first + m]];
      seen.by_row[i][m] = by_row;
      seen.by_any[i] |= by_row;
      seen.by_all[i] &= by_row;
      seen.grown[i] |= seen.shrink[m * seen.shrink_stride + i] != 1.0f;
    }
    seen.whole &= seen.by_all[i] == kAllVisible;
  }
  return seen;
}

// What is asked for while a copied tile is worked on: the lines that the next copy will read.
struct Source {
  Ahead keys, values;
  int64_t half_bytes;  // 0: nothing
};

template <class T, bool Ask>
void score_all(const Rows& rows, const Batch<T>& batch, float scale, const Source& source) {
  const int64_t dim = rows.head_dim, row_stride = kTile * rows.together, tokens = rows.count / rows.group;
  Ahead ahead{};
  for (int i = 0; i < batch.count; i++) {
    if (Ask) ahead = values_of(batch.tiles[i]);
    for (int64_t r = 0; r < rows.count;) {
      const int panel = panel_rows(rows.count - r);
      uint32_t any = 0;
      for (int64_t t = rows.token[r]; t <= rows.token[r + panel - 1]; t++) any |= batch.visible[i * tokens + t];
      if (source.half_bytes) ask_share(source.keys, source.half_bytes, r, r + panel, rows.count);
      if (any) {
        constexpr int kStep = Ask ? 2 : 1;  // where entries lie, halves are the unit
        const int first = __builtin_ctz(any) / kLanes / kStep * kStep, last = (31 - __builtin_clz(any)) / kLanes;
        with_rows(panel, [&](auto m) {
          score_rows<T, m(), Ask>(batch.tiles[i], first, (last + kStep) / kStep * kStep, rows.q + r * dim, dim, scale,
                                  rows.scores + r * row_stride + i * kTile, row_stride, ahead);
        });
      }
      r += panel;
    }
  }
}

// Row r's tile i: eight rows of one tile side by side, or two rows of four.
template <int tiles, class T>
void weigh_all(const Rows& rows, const Batch<T>& batch, float soft_cap) {
  constexpr int step = kLanes / tiles;
  const int64_t tokens = rows.count / rows.group;
  for (int64_t r = 0; r < rows.count; r += step) {
    Scores scores;
    for (int lane = 0; lane < kLanes; lane++) {
      const int64_t row = r + lane / tiles, i = lane % tiles;
      scores.at[lane] = rows.scores + (row * tiles + i) * kTile;
      scores.seen[lane] = row < rows.count && i < batch.count ? batch.visible[i * tokens + rows.token[row]] : 0;
    }
    alignas(32) float shrink[kLanes];
    if constexpr (tiles == 1)
      weigh_rows(scores, soft_cap, rows.largest + r, rows.sum + r, shrink);
    else
      weigh_tiles(scores, soft_cap, rows.largest + r, rows.sum + r, shrink);
    memcpy(rows.shrink + r * tiles, shrink, sizeof(shrink));
  }
}

template <class T, bool Ask>
void add_all(const Rows& rows, const Batch<T>& batch, const Ahead* ahead, const Source& source) {
  const int64_t dim = rows.head_dim;
  for (int64_t r = 0; r < rows.count;) {
    const int panel = panel_rows(rows.count - r);
    const Seen seen = seen_by_panel(rows, batch, r, panel);
    if (source.half_bytes) ask_share(source.values, source.half_bytes, r, r + panel, rows.count);
    with_rows(panel, [&](auto m) {
      if (seen.whole)
        add_value_rows<T, m(), true, Ask>(batch.tiles, seen, dim, rows.acc + r * dim, ahead);
      else
        add_value_rows<T, m(), false, Ask>(batch.tiles, seen, dim, rows.acc + r * dim, ahead);
    });
    r += panel;
  }
}

// Few rows: keys and values are read where they lie, and the next ones are asked for meanwhile.
template <class T>
void fold_in_place(Rows& rows, const AttentionStep& step, Course course, const Blocks<T>& blocks) {
  const auto place = [&](int64_t base, uint32_t any) { return tile_in_place(blocks, base, any); };
  Batch<T> batches[2];
  Ahead ahead[kTogether];
  int most = 1;  // nothing has asked for the first ones
  gather(rows, course, most, batches[0], place);
  for (int turn = 0; batches[turn].count; turn ^= 1) {
    const Batch<T>&now = batches[turn], &next = batches[turn ^ 1];
    most = most < kTogether ? 2 * most : kTogether;
    gather(rows, course, most, batches[turn ^ 1], place);
    for (int i = 0; i < kTogether; i++) ahead[i] = keys_of(i < next.count ? next.tiles[i] : now.tiles[0], rows.head_dim);
    score_all<T, true>(rows, now, step.scale, {});
    weigh_all<kTogether>(rows, now, step.soft_cap);
    add_all<T, true>(rows, now, ahead, {});
  }
}

template <class T>
Source source_of(const Blocks<T>& blocks, const Course& course) {
  if (course.base >= course.stop || blocks.size % kHalf) return {};
  const Tile<T> tile = tile_in_place(blocks, course.base, run_of_bits(0, course.stop, course.base));
  return {keys_of(tile, blocks.head_dim), values_of(tile), kHalf * blocks.head_dim * static_cast<int64_t>(sizeof(T))};
}

template <class T>
void fold_copies(Rows& rows, const AttentionStep& step, Course course, const Blocks<T>& blocks) {
  const auto place = [&](int64_t base, uint32_t any) { return tile_copied(blocks, base, any, rows.keys, rows.values); };
  Batch<float> batch;
  for (gather(rows, course, 1, batch, place); batch.count; gather(rows, course, 1, batch, place)) {
    const Source source = source_of(blocks, course);
    score_all<float, false>(rows, batch, step.scale, source);
    weigh_all<1>(rows, batch, step.soft_cap);
    add_all<float, false>(rows, batch, nullptr, source);
  }
}

template <class T>
void fold_segment(Rows& rows, const AttentionStep& step, const AttentionUnit& unit, int64_t segment) {
  for (int64_t r = 0; r < (rows.count + kLanes - 1) / kLanes * kLanes; r++) rows.largest[r] = -__builtin_inff(), rows.sum[r] = 0.0f;
  memset(rows.acc, 0, bytes_of(rows.count * rows.head_dim));
  const Course course = course_of(rows, unit, segment);
  const Blocks<T> blocks = blocks_of<T>(step, unit);
  if (rows.together > 1) return fold_in_place(rows, step, course, blocks);
  fold_copies(rows, step, course, blocks);
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

int64_t attention_scratch(int64_t rows, int64_t head_dim) { return scratch_of_rows(rows, head_dim); }

void attend(const AttentionStep& step, const AttentionUnit& unit, float* scratch) {
  Rows rows;
  open_rows(rows, step, unit, scratch);
  copy_queries(rows, step, unit);
  const int64_t dim = rows.head_dim;
  const auto fold_of = [&](int64_t r) { return Fold{rows.largest[r], rows.sum[r]}; };
  if (unit.partial) {
    fold_segment_of(rows, step, unit, unit.segment);
    float* to = unit.partial + unit.segment * rows.count * (dim + 2);
    for (int64_t r = 0; r < rows.count; r++, to += dim + 2) {
      to[0] = rows.largest[r], to[1] = rows.sum[r];
      memcpy(to + 2, rows.acc + r * dim, bytes_of(dim));
    }
    return;
  }
  if (unit.num_segments == 1) {
    fold_segment_of(rows, step, unit, 0);
    for (int64_t r = 0; r < rows.count; r++) write_row(fold_of(r), rows.acc + r * dim, dim, step.out + row_offset(step, unit, r));
    return;
  }
  for (int64_t r = 0; r < rows.count; r++) rows.total[r] = {0.0f, 0.0f};
  if (!unit.num_segments) memset(rows.total_acc, 0, bytes_of(rows.count * dim));
  for (int64_t segment = 0; segment < unit.num_segments; segment++) {
    fold_segment_of(rows, step, unit, segment);
    for (int64_t r = 0; r < rows.count; r++) join(rows.total[r], rows.total_acc + r * dim, fold_of(r), rows.acc + r * dim, dim);
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
