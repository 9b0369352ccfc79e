#include "core.hpp"

#include <algorithm>
#include <cstring>

#include "linear_parallel.hpp"

namespace kvpact {
namespace {

// Less work than this (numbers touched) is done by the caller alone: a barrier costs as much.
constexpr int64_t kInlineWork = 1 << 14;

}  // namespace

Core::Core(const Shape& shape, const Kernels& kernels, int num_threads) : shape_(shape), kernels_(kernels), threads_(num_threads) {}

Matrix Core::pack(const void* weight, int64_t out_features, int64_t in_features, DType dtype, std::vector<float> bias) {
  Matrix matrix;
  matrix.memory = PageMemory(static_cast<size_t>(kernels_.linear_packed_bytes(out_features, in_features, dtype)));
  matrix.packed = PackedLinear{matrix.memory.data(), out_features, in_features, dtype};
  matrix.bias = std::move(bias);
  linear_pack(threads_, kernels_,
              LinearPackCall{weight, in_features, out_features, in_features, dtype, 0, num_panels(out_features), matrix.memory.data()});
  return matrix;
}

void Core::set_tables(Table embedding, Table positions, Matrix head, Norm final_norm) {
  embedding_ = embedding;
  position_table_ = positions;
  head_ = std::move(head);
  final_norm_ = std::move(final_norm);
}

void Core::add_layer(LayerWeights weights) { layers_.push_back(std::move(weights)); }

void Core::begin(const std::vector<GroupStep>& groups, const std::vector<int>& group_of_layer, std::vector<EntryStorage> entries,
                 const int64_t* token_ids, const int64_t* positions, int64_t num_tokens) {
  const Ranges::Scope range(ranges_, RangeName::begin);
  groups_ = groups;
  group_of_layer_ = group_of_layer;
  entries_ = std::move(entries);
  num_tokens_ = num_tokens;
  positions_.assign(positions, positions + num_tokens);
  gate_ = GateReport{};
  const int64_t hidden = shape_.hidden, query = shape_.num_heads * shape_.head_dim, key = shape_.num_kv_heads * shape_.head_dim;
  grow(rows_, num_tokens * hidden);
  grow(next_, num_tokens * hidden);
  grow(normed_, num_tokens * hidden);
  grow(stacked_, num_tokens * (query + 2 * key));
  grow(queries_, num_tokens * query);
  grow(attended_, num_tokens * query);
  grow(keys_, num_tokens * key);
  grow(values_, num_tokens * key);
  grow(inner_, num_tokens * shape_.inner * (shape_.gated ? 2 : 1));
  grow(activated_, num_tokens * shape_.inner);
  while (plans_.size() < groups_.size()) plans_.push_back(std::make_unique<Plan>());
  scratch_of_thread_ = 0;
  for (size_t group = 0; group < groups_.size(); group++) {
    const auto layer = std::find(group_of_layer_.begin(), group_of_layer_.end(), static_cast<int>(group)) - group_of_layer_.begin();
    plan_group(*plans_[group], groups_[group], entries_[static_cast<size_t>(layer)]);
  }
  grow(scratch_, scratch_of_thread_ * threads_.num_threads());
  kernels_.embed(embedding_.data, embedding_.dtype, token_ids, num_tokens, hidden, rows_.data());
  if (position_table_.data) {
    kernels_.embed(position_table_.data, position_table_.dtype, positions_.data(), num_tokens, hidden, normed_.data());
    kernels_.add_rows(rows_.data(), normed_.data(), num_tokens * hidden, rows_.data());
  }
}

// A request's rows are the last ones of its length: visibility follows the length, rotation the positions that were given.
void Core::plan_group(Plan& plan, const GroupStep& group, const EntryStorage& entries) {
  plan.row_positions.resize(static_cast<size_t>(num_tokens_));
  for (int64_t request = 0; request < group.num_requests; request++) {
    const int64_t first = group.query_start[request], last = group.query_start[request + 1];
    for (int64_t row = first; row < last; row++) plan.row_positions[static_cast<size_t>(row)] = group.seq_lens[request] - (last - row);
  }
  AttentionStep& step = plan.step;
  step = AttentionStep{};
  step.q = queries_.data();
  step.out = attended_.data();
  step.entries = entries;
  step.block_table = group.block_table;
  step.table_stride = group.table_stride;
  step.query_start = group.query_start;
  step.seq_lens = group.seq_lens;
  step.positions = plan.row_positions.data();
  step.rules = group.rules;
  step.scale = shape_.scale;
  step.group = static_cast<int32_t>(shape_.num_heads / shape_.num_kv_heads);
  plan_attention(step, group.num_requests, threads_.num_threads(), plan.units);
  const int64_t scratch = kernels_.attention_scratch(std::max<int64_t>(plan.units.max_rows, step.group), shape_.head_dim);
  scratch_of_thread_ = std::max(scratch_of_thread_, (scratch + 15) / 16 * 16);
}

void Core::project(int layer) {
  const Ranges::Scope range(ranges_, RangeName::project);
  const LayerWeights& weights = layers_[static_cast<size_t>(layer)];
  norm(weights.attention_norm, rows_.data(), normed_.data());
  linear(weights.qkv, normed_.data(), stacked_.data(), nullptr);
  reports_.assign(static_cast<size_t>(threads_.num_threads()), ThreadReport{});
  const int64_t numbers = (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
  for_rows(2 * numbers, [&](int64_t begin, int64_t end, int thread) {
    split_rows(weights, begin, end);
    write_rows(layer, begin, end, reports_[static_cast<size_t>(thread)]);
  });
  if (checks_entries_) add_reports(layer);
}

// The stacked rows [begin, end): heads normed and rotated, then queries, keys and values each to their own array.
void Core::split_rows(const LayerWeights& weights, int64_t begin, int64_t end) {
  const int64_t dim = shape_.head_dim, query = shape_.num_heads * dim, key = shape_.num_kv_heads * dim, stride = query + 2 * key;
  for (int64_t row = begin; row < end && !weights.q_norm.empty(); row++) {
    float *q = stacked_.data() + row * stride, *k = q + query;
    kernels_.rms_norm(q, dim, weights.q_norm.data(), shape_.norm_eps, shape_.num_heads, dim, q, dim);
    kernels_.rms_norm(k, dim, weights.k_norm.data(), shape_.norm_eps, shape_.num_kv_heads, dim, k, dim);
  }
  if (shape_.cos)
    kernels_.rotate(stacked_.data() + begin * stride, stride, shape_.num_heads + shape_.num_kv_heads, dim, dim, shape_.cos, shape_.sin,
                    positions_.data() + begin, end - begin);
  for (int64_t row = begin; row < end; row++) {
    const float* x = stacked_.data() + row * stride;
    std::memcpy(queries_.data() + row * query, x, static_cast<size_t>(query) * sizeof(float));
    std::memcpy(keys_.data() + row * key, x + query, static_cast<size_t>(key) * sizeof(float));
    std::memcpy(values_.data() + row * key, x + query + key, static_cast<size_t>(key) * sizeof(float));
  }
}

void Core::write_rows(int layer, int64_t begin, int64_t end, ThreadReport& mine) {
  const int64_t key = shape_.num_kv_heads * shape_.head_dim;
  const GroupStep& group = groups_[static_cast<size_t>(group_of_layer_[static_cast<size_t>(layer)])];
  WriteReport report{0, -1};
  kernels_.write_entries(entries_[static_cast<size_t>(layer)], keys_.data() + begin * key, values_.data() + begin * key,
                         group.slots + begin, end - begin, checks_entries_ ? &report : nullptr);
  if (!report.num_not_finite) return;
  if (begin < mine.first_row) mine.first_row = begin, mine.found.first_bad_slot = report.first_bad_slot;
  mine.found.num_not_finite += report.num_not_finite;
}

// The lowest row names the slot, whichever thread wrote it.
void Core::add_reports(int layer) {
  int64_t first_row = INT64_MAX, slot = -1, count = 0;
  for (const ThreadReport& report : reports_) {
    if (report.first_row < first_row) first_row = report.first_row, slot = report.found.first_bad_slot;
    count += report.found.num_not_finite;
  }
  if (count && gate_.num_not_finite == 0) gate_.first_bad_slot = slot, gate_.first_bad_layer = layer;
  gate_.num_not_finite += count;
  gate_.num_written += num_tokens_;
}

void Core::attend(int layer) {
  const Ranges::Scope range(ranges_, RangeName::attend);
  Plan& plan = *plans_[static_cast<size_t>(group_of_layer_[static_cast<size_t>(layer)])];
  plan.step.entries = entries_[static_cast<size_t>(layer)];
  threads_.parallel(static_cast<int64_t>(plan.units.units.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t unit = begin; unit < end; unit++)
      kernels_.attend(plan.step, plan.units.units[static_cast<size_t>(unit)], scratch_.data() + thread * scratch_of_thread_);
  });
  if (plan.units.combines.empty()) return;
  threads_.parallel(static_cast<int64_t>(plan.units.combines.size()), 4, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t unit = begin; unit < end; unit++)
      kernels_.combine(plan.step, plan.units.combines[static_cast<size_t>(unit)], scratch_.data() + thread * scratch_of_thread_);
  });
}

void Core::merge(int layer) {
  const Ranges::Scope range(ranges_, RangeName::merge);
  linear(layers_[static_cast<size_t>(layer)].out, attended_.data(), next_.data(), rows_.data());
  std::swap(rows_, next_);
}

void Core::expand(int layer) {
  const Ranges::Scope range(ranges_, RangeName::expand);
  const LayerWeights& weights = layers_[static_cast<size_t>(layer)];
  norm(weights.mlp_norm, rows_.data(), normed_.data());
  linear(weights.up, normed_.data(), inner_.data(), nullptr);
  const int64_t inner = shape_.inner, stride = inner * (shape_.gated ? 2 : 1);
  for_rows(4 * inner, [&](int64_t begin, int64_t end, int) {
    const float* gate = inner_.data() + begin * stride;
    kernels_.activate(shape_.activation, gate, shape_.gated ? gate + inner : nullptr, stride, end - begin, inner,
                      activated_.data() + begin * inner, inner);
  });
}

void Core::contract(int layer) {
  const Ranges::Scope range(ranges_, RangeName::contract);
  linear(layers_[static_cast<size_t>(layer)].down, activated_.data(), next_.data(), rows_.data());
  std::swap(rows_, next_);
}

void Core::finish() {
  const Ranges::Scope range(ranges_, RangeName::finish);
  norm(final_norm_, rows_.data(), next_.data());
  std::swap(rows_, next_);
}

const Buffer& Core::logits(const int64_t* wanted, int64_t count) {
  const Ranges::Scope range(ranges_, RangeName::logits);
  grow(wanted_, count * shape_.hidden);
  grow(logits_, count * vocab());
  for (int64_t i = 0; i < count; i++)
    std::memcpy(wanted_.data() + i * shape_.hidden, rows_.data() + wanted[i] * shape_.hidden, static_cast<size_t>(shape_.hidden) * sizeof(float));
  linear_rows(head_, wanted_.data(), count, logits_.data(), nullptr);
  return logits_;
}

void Core::for_rows(int64_t cost, UnitsRef fn) {
  if (num_tokens_ * cost <= kInlineWork) return fn(0, num_tokens_, 0);
  threads_.parallel(num_tokens_, std::max<int64_t>(1, kInlineWork / cost / 4), fn);
}

void Core::linear(const Matrix& matrix, const float* x, float* y, const float* residual) {
  linear_rows(matrix, x, num_tokens_, y, residual);
}

void Core::linear_rows(const Matrix& matrix, const float* x, int64_t rows, float* y, const float* residual) {
  LinearCall call{};
  call.x = x;
  call.ldx = matrix.packed.in_features;
  call.rows = rows;
  call.weight = matrix.packed;
  call.panel_end = num_panels(matrix.packed.out_features);
  call.y = y;
  call.ldy = matrix.packed.out_features;
  call.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  call.residual = residual;
  call.ldr = matrix.packed.out_features;
  kvpact::linear(threads_, kernels_, call);
}

void Core::norm(const Norm& norm, const float* x, float* y) {
  const int64_t width = shape_.hidden;
  for_rows(4 * width, [&](int64_t begin, int64_t end, int) {
    if (shape_.layer_norm)
      kernels_.layer_norm(x + begin * width, width, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), shape_.norm_eps,
                          end - begin, width, y + begin * width, width);
    else
      kernels_.rms_norm(x + begin * width, width, norm.weight.data(), shape_.norm_eps, end - begin, width, y + begin * width, width);
  });
}

void Core::grow(Buffer& buffer, int64_t count) {
  if (buffer.reserve(count)) num_allocations_++;
}

}  // namespace kvpact
