// For benchmarks only: single operators over many matrices and layers, and the machine's limits, without Python between the calls.
#include "bindings.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "attention_plan.hpp"
#include "core.hpp"
#include "dispatch.hpp"
#include "entries_python.hpp"
#include "linear_parallel.hpp"

namespace kvpact {
namespace {

// Operators that share one pool of threads.
class Bench {
 public:
  explicit Bench(int num_threads) : threads_(num_threads), sinks_(static_cast<size_t>(num_threads) * kSinkStride) {}

  // y [rows, out_features] = x [rows, in_features] by each matrix in turn; only the last one's result stays.
  void linear(const std::vector<const Matrix*>& matrices, Array x, Array y) {
    for (const Matrix* matrix : matrices) {
      LinearCall call{};
      call.weight = matrix->packed;
      call.rows = static_cast<int64_t>(x.shape(0));
      call.ldx = call.weight.in_features;
      call.ldy = call.weight.out_features;
      call.x = checked<float>(x, "x", {call.rows, call.ldx});
      call.y = const_cast<float*>(checked<float>(y, "y", {call.rows, call.ldy}));
      call.panel_end = num_panels(call.weight.out_features);
      nb::gil_scoped_release unlocked;
      kvpact::linear(threads_, kernels_, call);
    }
  }

  // The matrices' packed bytes, once each.
  void read_matrices(const std::vector<const Matrix*>& matrices) {
    nb::gil_scoped_release unlocked;
    for (const Matrix* matrix : matrices) {
      const char* from = static_cast<const char*>(matrix->memory.data());
      constexpr int64_t kPart = 4096;
      const int64_t parts = static_cast<int64_t>(matrix->memory.num_bytes()) / kPart;
      threads_.parallel(parts, std::max<int64_t>(1, parts / (4 * threads_.num_threads())), [&](int64_t begin, int64_t end, int thread) {
        for (const char* at = from + begin * kPart; at < from + end * kPart; at += kPart)
          kernels_.read_lines(at, kPart, at + kPart, sink(thread));
      });
    }
  }

  // Attention of q [T, H, D] -> out over each layer's entries in turn; all layers have equally many blocks.
  void attention(const std::vector<const Entries*>& layers, Array q, Array out, Array query_start, Array seq_lens, Array block_table,
                 Array rules, float scale) {
    const StepArrays arrays = plan(layers, q, query_start, seq_lens, block_table, rules);
    checked<float>(out, "out", {arrays.num_tokens, static_cast<int64_t>(q.shape(1)), step_.entries.head_dim});
    step_.out = static_cast<float*>(out.data());
    step_.scale = scale;
    nb::gil_scoped_release unlocked;
    const int64_t rows = std::max<int64_t>(plan_.max_rows, step_.group);
    const int64_t scratch = (kernels_.attention_scratch(rows, step_.entries.head_dim) + 15) / 16 * 16;
    scratch_.reserve(scratch * threads_.num_threads());
    for (const Entries* layer : layers) {
      step_.entries = layer->storage;
      threads_.parallel(static_cast<int64_t>(plan_.units.size()), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t u = begin; u < end; u++)
          kernels_.attend(step_, plan_.units[static_cast<size_t>(u)], scratch_.data() + thread * scratch);
      });
      for (const AttentionUnit& unit : plan_.combines) kernels_.combine(step_, unit, scratch_.data());
    }
  }

  // The same blocks in the same order and by the same units, but only read.
  void read_blocks(const std::vector<const Entries*>& layers, Array q, Array query_start, Array seq_lens, Array block_table,
                   Array rules) {
    const StepArrays arrays = plan(layers, q, query_start, seq_lens, block_table, rules);
    nb::gil_scoped_release unlocked;
    for (const Entries* layer : layers) {
      step_.entries = layer->storage;
      threads_.parallel(static_cast<int64_t>(plan_.units.size()), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t u = begin; u < end; u++) read_unit(plan_.units[static_cast<size_t>(u)], sink(thread));
      });
    }
  }

  // Floating-point operations per second of all threads together, in registers.
  double flop_peak(double seconds) {
    nb::gil_scoped_release unlocked;
    using Clock = std::chrono::steady_clock;
    constexpr int64_t kRounds = 20000;
    const int64_t parts = 16 * threads_.num_threads();
    double best = 0;
    const auto stop = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < stop) {
      std::atomic<int64_t> done{0};
      const auto start = Clock::now();
      threads_.parallel(parts, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; i++) done += kernels_.multiply_adds(kRounds, sink(thread));
      });
      best = std::max(best, static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
  }

  Matrix pack(Array weight) {
    check_shape(weight, "weight", {kAny, kAny});
    const auto out_features = static_cast<int64_t>(weight.shape(0)), in_features = static_cast<int64_t>(weight.shape(1));
    const DType dtype = dtype_of(weight, "weight");
    Matrix matrix;
    matrix.memory = PageMemory(static_cast<size_t>(kernels_.linear_packed_bytes(out_features, in_features, dtype)));
    matrix.packed = PackedLinear{matrix.memory.data(), out_features, in_features, dtype};
    const int64_t panels = num_panels(out_features);
    linear_pack(threads_, kernels_,
                LinearPackCall{weight.data(), in_features, out_features, in_features, dtype, 0, panels, matrix.memory.data()});
    return matrix;
  }

 private:
  static constexpr size_t kSinkStride = 64;
  float* sink(int thread) { return sinks_.data() + static_cast<size_t>(thread) * kSinkStride; }

  StepArrays plan(const std::vector<const Entries*>& layers, const Array& q, const Array& query_start, const Array& seq_lens,
                  const Array& block_table, const Array& rules) {
    if (layers.empty()) throw nb::value_error("no layers");
    const EntryStorage& storage = layers[0]->storage;
    for (const Entries* layer : layers)
      if (layer->storage.num_blocks != storage.num_blocks || layer->storage.block_stride != storage.block_stride ||
          layer->storage.head_stride != storage.head_stride || layer->storage.dtype != storage.dtype)
        throw nb::value_error("the layers' entries differ in shape or dtype");
    StepArrays arrays = checked_step(query_start, seq_lens, block_table, rules, storage);
    const float* queries = checked<float>(q, "q", {arrays.num_tokens, kAny, storage.head_dim});
    const auto heads = static_cast<int64_t>(q.shape(1));
    if (heads < 1 || heads % storage.num_kv_heads || heads / storage.num_kv_heads > kMaxRows)
      throw nb::value_error((std::to_string(heads) + " query heads can't share " + std::to_string(storage.num_kv_heads) + " key heads").c_str());
    positions_.resize(static_cast<size_t>(arrays.num_tokens));
    for (int64_t r = 0; r < arrays.num_requests; r++)
      for (int64_t row = arrays.query_start[r]; row < arrays.query_start[r + 1]; row++)
        positions_[static_cast<size_t>(row)] = arrays.seq_lens[r] - (arrays.query_start[r + 1] - row);
    step_ = AttentionStep{queries, nullptr, storage, arrays.block_table, arrays.table_stride, arrays.query_start, arrays.seq_lens,
                          positions_.data(), arrays.rules.data(), 1, 0, static_cast<int32_t>(heads / storage.num_kv_heads)};
    plan_attention(step_, arrays.num_requests, threads_.num_threads(), plan_);
    return arrays;
  }

  void read_unit(const AttentionUnit& unit, float* to) {
    const EntryStorage& e = step_.entries;
    const int64_t begin = unit.partial ? unit.segment * kSegment : 0;
    const int64_t end = std::min(step_.seq_lens[unit.request], unit.partial ? begin + kSegment : INT64_MAX);
    const int64_t size = e.dtype == DType::f32 ? 4 : 2, bytes = e.head_stride * size;
    const int64_t* table = step_.block_table + unit.request * step_.table_stride;
    if (end <= begin) return;
    const int64_t last = (end - 1) / e.block_size;
    for (int64_t block = begin / e.block_size; block <= last; block++) {
      const auto at = [&](const void* memory, int64_t b) {
        return static_cast<const char*>(memory) + (table[b] * e.block_stride + unit.kv_head * e.head_stride) * size;
      };
      kernels_.read_lines(at(e.keys, block), bytes, at(e.values, block), to);
      kernels_.read_lines(at(e.values, block), bytes, at(e.keys, std::min(block + 1, last)), to);
    }
  }

  const Kernels& kernels_ = select_kernels();
  ThreadPool threads_;
  std::vector<float> sinks_;
  Buffer scratch_;
  std::vector<int64_t> positions_;
  AttentionStep step_{};
  AttentionPlan plan_;
};

}  // namespace

void bind_bench(nb::module_& m) {
  nb::class_<Bench>(m, "Bench", "Operators of the core over many matrices and layers, for benchmarks.")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def("pack", &Bench::pack, nb::arg("weight"))
      .def("linear", &Bench::linear, nb::arg("matrices"), nb::arg("x"), nb::arg("y"))
      .def("read_matrices", &Bench::read_matrices, nb::arg("matrices"))
      .def("attention", &Bench::attention, nb::arg("layers"), nb::arg("q"), nb::arg("out"), nb::arg("query_start_loc"), nb::arg("seq_lens"),
           nb::arg("block_table"), nb::arg("rules"), nb::arg("scale"))
      .def("read_blocks", &Bench::read_blocks, nb::arg("layers"), nb::arg("q"), nb::arg("query_start_loc"), nb::arg("seq_lens"),
           nb::arg("block_table"), nb::arg("rules"))
      .def("flop_peak", &Bench::flop_peak, nb::arg("seconds"));
}

}  // namespace kvpact
