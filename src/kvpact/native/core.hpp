// One decoder's arithmetic from token ids to logits: packed weights, workspace, and the plan of the step under way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention_plan.hpp"
#include "kernels/kernels.hpp"
#include "memory.hpp"
#include "ranges.hpp"
#include "threads.hpp"

namespace kvpact {

// Sizes and kinds. The rotation's tables [num_positions, head_dim / 2] are the caller's, and outlive the core; null: none.
struct Shape {
  int64_t hidden, inner;
  int64_t num_heads, num_kv_heads, head_dim;
  bool layer_norm;
  float norm_eps;
  Activation activation;
  bool gated;
  float scale;
  const float* cos;
  const float* sin;
  int64_t num_positions;
};

// A norm's weight, and its bias where it has one.
struct Norm {
  std::vector<float> weight, bias;
};

// A matrix [out_features, in_features] packed for the kernels, and its bias.
struct Matrix {
  PageMemory memory{0};
  PackedLinear packed{};
  std::vector<float> bias;
};

// qkv: queries, keys and values stacked. up: gate and up stacked where the MLP is gated. q_norm, k_norm: empty where heads have none.
struct LayerWeights {
  Norm attention_norm, mlp_norm;
  std::vector<float> q_norm, k_norm;
  Matrix qkv, out, up, down;
};

// Row-major rows of embeddings, [rows, hidden]; the caller's memory.
struct Table {
  const void* data = nullptr;
  int64_t rows = 0;
  DType dtype = DType::f32;
};

// One layer group's arrays of a step; the caller's memory, valid until the step ends.
struct GroupStep {
  const int64_t* query_start;  // [R + 1]
  const int64_t* seq_lens;     // [R]
  const int64_t* slots;        // [T]
  const int64_t* block_table;  // [R, table_stride]
  int64_t table_stride;
  int64_t num_requests;
  const Rule* rules;           // [R]
};

// What the write gate found in the step: numbers that are not finite, and the first slot that holds one.
struct GateReport {
  int64_t num_written = 0, num_not_finite = 0, first_bad_slot = -1, first_bad_layer = -1;
};

class Core {
 public:
  Core(const Shape& shape, const Kernels& kernels, int num_threads);

  const Shape& shape() const { return shape_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  ThreadPool& threads() { return threads_; }

  Matrix pack(const void* weight, int64_t out_features, int64_t in_features, DType dtype, std::vector<float> bias);
  void set_tables(Table embedding, Table positions, Matrix head, Norm final_norm);
  void add_layer(LayerWeights weights);
  void set_gate(bool checks_entries) { checks_entries_ = checks_entries; }

  // The step: which entries each layer has, its group's arrays, the tokens. What the step before left is gone.
  void begin(const std::vector<GroupStep>& groups, const std::vector<int>& group_of_layer, std::vector<EntryStorage> entries,
             const int64_t* token_ids, const int64_t* positions, int64_t num_tokens);
  void project(int layer);
  void attend(int layer);
  void merge(int layer);
  void expand(int layer);
  void contract(int layer);
  void finish();

  // Hidden states [num_tokens, hidden], after `finish`; the next step overwrites them.
  const Buffer& rows() const { return rows_; }
  // [num_tokens, num_heads * head_dim]: a layer's queries from `project` on, what they attended to from `attend` on.
  const Buffer& queries() const { return queries_; }
  const Buffer& attended() const { return attended_; }
  int64_t num_tokens() const { return num_tokens_; }
  // [count, vocab] of the rows `wanted`; the next call overwrites them.
  const Buffer& logits(const int64_t* wanted, int64_t count);
  const GateReport& gate_report() const { return gate_; }
  int64_t vocab() const { return head_.packed.out_features; }
  // Times that a buffer had to grow: none after warm-up.
  int64_t num_allocations() const { return num_allocations_; }
  Ranges& ranges() { return ranges_; }

 private:
  // Fits the step's units of one group; the same for all its layers.
  struct Plan {
    AttentionStep step{};
    AttentionPlan units;
    std::vector<int64_t> row_positions;  // [T]: the last rows of each request's length
  };
  // What one thread's writes of a layer found, and the row from which it found the first.
  struct ThreadReport {
    WriteReport found{0, -1};
    int64_t first_row = INT64_MAX;
  };

  void plan_group(Plan& plan, const GroupStep& group, const EntryStorage& entries);
  void split_rows(const LayerWeights& weights, int64_t begin, int64_t end);
  void write_rows(int layer, int64_t begin, int64_t end, ThreadReport& mine);
  void add_reports(int layer);
  void for_rows(int64_t cost, UnitsRef fn);
  void linear(const Matrix& matrix, const float* x, float* y, const float* residual);
  void linear_rows(const Matrix& matrix, const float* x, int64_t rows, float* y, const float* residual);
  void norm(const Norm& norm, const float* x, float* y);
  void grow(Buffer& buffer, int64_t count);

  Shape shape_;
  const Kernels& kernels_;
  ThreadPool threads_;
  std::vector<LayerWeights> layers_;
  Table embedding_, position_table_;
  Matrix head_;
  Norm final_norm_;

  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<GroupStep> groups_;
  std::vector<int> group_of_layer_;
  std::vector<EntryStorage> entries_;
  std::vector<int64_t> positions_;
  int64_t num_tokens_ = 0;
  Buffer rows_, next_, normed_, stacked_, queries_, attended_, keys_, values_, inner_, activated_, logits_, scratch_, wanted_;
  int64_t scratch_of_thread_ = 0;
  bool checks_entries_ = true;
  std::vector<ThreadReport> reports_;
  GateReport gate_;
  int64_t num_allocations_ = 0;
  Ranges ranges_;
};

}  // namespace kvpact
