#include "attention_plan.hpp"

#include <algorithm>
#include <utility>

namespace kvpact {
namespace {

constexpr int64_t kUnitsOfThread = 4;  // fewer leave a thread idle at the end
constexpr int64_t kMaxSplitRows = 16;  // more rows are work enough, and their partial results are large

// Segments that hold a key which the unit's tokens may see, from 0.
int64_t num_segments(const AttentionStep& step, const AttentionUnit& unit) {
  int64_t stop = step.seq_lens[unit.request];
  const Rule& rule = step.rules[unit.request];
  if (rule.causal) {
    int64_t last = rule.prefix;
    for (int64_t i = 0; i < unit.num_tokens; i++) last = std::max(last, step.positions[unit.first_token + i] + 1);
    stop = std::min(stop, last);
  }
  return (stop + kSegment - 1) / kSegment;
}

// Enough rows to copy a tile once for all; whole tiles of tokens, so that one tile of a prompt lies on the diagonal.
int64_t tokens_of_unit(int64_t group) {
  const int64_t most = std::max<int64_t>(1, kMaxRows / group);
  return most < kTile ? most : most / kTile * kTile;
}

// Takes plan.whole to plan.units, and those that are split to plan.combines too.
void add_split(const AttentionStep& step, AttentionPlan& plan) {
  const int64_t row = step.entries.head_dim + 2;
  int64_t size = 0;
  for (const AttentionUnit& unit : plan.whole)
    if (unit.num_segments > 1 && unit.num_tokens * step.group <= kMaxSplitRows)
      size += unit.num_segments * unit.num_tokens * step.group * row;
  plan.partial.resize(static_cast<size_t>(size));
  float* to = plan.partial.data();
  for (AttentionUnit unit : plan.whole) {
    const int64_t rows = unit.num_tokens * step.group;
    if (unit.num_segments > 1 && rows <= kMaxSplitRows) {
      unit.partial = to;
      to += unit.num_segments * rows * row;
      plan.combines.push_back(unit);
      for (unit.segment = 0; unit.segment < unit.num_segments; unit.segment++) plan.units.push_back(unit);
    } else {
      plan.units.push_back(unit);
    }
  }
}

}  // namespace

void plan_attention(const AttentionStep& step, int64_t num_requests, int num_threads, AttentionPlan& plan) {
  plan.units.clear();
  plan.combines.clear();
  const int64_t tokens = tokens_of_unit(step.group);
  for (int64_t request = 0; request < num_requests; request++) {
    for (int64_t first = step.query_start[request]; first < step.query_start[request + 1]; first += tokens) {
      const int64_t count = std::min(tokens, step.query_start[request + 1] - first);
      AttentionUnit unit{request, first, count, 0, 0, nullptr, 0};
      unit.num_segments = num_segments(step, unit);
      for (unit.kv_head = 0; unit.kv_head < step.entries.num_kv_heads; unit.kv_head++) plan.units.push_back(unit);
    }
  }
  plan.max_rows = 0;
  for (const AttentionUnit& unit : plan.units) plan.max_rows = std::max(plan.max_rows, unit.num_tokens * step.group);
  if (num_threads == 1 || static_cast<int64_t>(plan.units.size()) >= kUnitsOfThread * num_threads) return;
  std::swap(plan.whole, plan.units);
  plan.units.clear();
  add_split(step, plan);
}

}  // namespace kvpact
