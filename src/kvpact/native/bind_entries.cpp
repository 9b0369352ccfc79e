// Single operators on a layer's entries: for the verification of the backend and for tests. The engine goes through the core.
#include "bindings.hpp"

#include "attention_plan.hpp"
#include "dispatch.hpp"
#include "entries_python.hpp"
#include "threads.hpp"

namespace kvpact {
namespace {

Entries make_entries(Array memory, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  if (block_size < 1 || num_kv_heads < 1 || head_dim < 8 || head_dim % 8 || head_dim > kMaxHeadDim)
    throw nb::value_error(("entries of block_size " + std::to_string(block_size) + ", " + std::to_string(num_kv_heads) +
                           " key heads of " + std::to_string(head_dim) + ": head_dim must be a multiple of 8, at most " +
                           std::to_string(kMaxHeadDim)).c_str());
  const DType dtype = dtype_of(memory, "memory");
  check_shape(memory, "memory", {2, kAny, block_size * num_kv_heads * head_dim});
  EntryStorage storage{};
  storage.num_blocks = static_cast<int64_t>(memory.shape(1));
  storage.block_stride = block_size * num_kv_heads * head_dim;
  storage.head_stride = block_size * head_dim;
  const size_t bytes = static_cast<size_t>(storage.num_blocks * storage.block_stride) * (dtype == DType::f32 ? 4 : 2);
  storage.keys = memory.data();
  storage.values = static_cast<char*>(memory.data()) + bytes;
  storage.block_size = block_size;
  storage.num_kv_heads = static_cast<int32_t>(num_kv_heads);
  storage.head_dim = static_cast<int32_t>(head_dim);
  storage.dtype = dtype;
  return Entries{storage};
}

void write(const Entries& entries, Array slots, Array keys, Array values) {
  const EntryStorage& storage = entries.storage;
  const int64_t* where = checked<int64_t>(slots, "slots", {kAny});
  const int64_t rows = static_cast<int64_t>(slots.shape(0));
  const float* k = checked<float>(keys, "keys", {rows, storage.num_kv_heads, storage.head_dim});
  const float* v = checked<float>(values, "values", {rows, storage.num_kv_heads, storage.head_dim});
  check_range(where, rows, -1, entries.num_slots(), "slots");
  select_kernels().write_entries(storage, k, v, where, rows, nullptr);
}

void attention(const Entries& entries, Array q, Array out, Array query_start, Array seq_lens, Array block_table, Array rules, float scale,
               int num_threads) {
  const EntryStorage& storage = entries.storage;
  const StepArrays arrays = checked_step(query_start, seq_lens, block_table, rules, storage);
  const float* queries = checked<float>(q, "q", {arrays.num_tokens, kAny, storage.head_dim});
  const int64_t heads = static_cast<int64_t>(q.shape(1));
  checked<float>(out, "out", {arrays.num_tokens, heads, storage.head_dim});
  if (heads < 1 || heads % storage.num_kv_heads || heads / storage.num_kv_heads > kMaxRows)
    throw nb::value_error((std::to_string(heads) + " query heads can't share " + std::to_string(storage.num_kv_heads) + " key heads").c_str());
  std::vector<int64_t> positions(static_cast<size_t>(arrays.num_tokens));
  for (int64_t r = 0; r < arrays.num_requests; r++)
    for (int64_t row = arrays.query_start[r]; row < arrays.query_start[r + 1]; row++)
      positions[static_cast<size_t>(row)] = arrays.seq_lens[r] - (arrays.query_start[r + 1] - row);
  AttentionStep step{};
  step.q = queries;
  step.out = static_cast<float*>(out.data());
  step.entries = storage;
  step.block_table = arrays.block_table;
  step.table_stride = arrays.table_stride;
  step.query_start = arrays.query_start;
  step.seq_lens = arrays.seq_lens;
  step.positions = positions.data();
  step.rules = arrays.rules.data();
  step.scale = scale;
  step.group = static_cast<int32_t>(heads / storage.num_kv_heads);
  const Kernels& kernels = select_kernels();
  nb::gil_scoped_release unlocked;
  AttentionPlan plan;
  plan_attention(step, arrays.num_requests, num_threads, plan);
  const int64_t scratch = (kernels.attention_scratch(std::max<int64_t>(plan.max_rows, step.group), storage.head_dim) + 15) / 16 * 16;
  std::vector<float> memory(static_cast<size_t>(scratch * num_threads));
  ThreadPool threads(num_threads);
  threads.parallel(static_cast<int64_t>(plan.units.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t unit = begin; unit < end; unit++) kernels.attend(step, plan.units[static_cast<size_t>(unit)], memory.data() + thread * scratch);
  });
  for (const AttentionUnit& unit : plan.combines) kernels.combine(step, unit, memory.data());
}

}  // namespace

void bind_entries(nb::module_& m) {
  nb::class_<Entries>(m, "Entries", "One layer's entries in Python's memory [2, num_blocks, block_size * K * D]: keys, then values.")
      .def_prop_ro("num_slots", &Entries::num_slots);
  m.def("entries", &make_entries, nb::arg("memory"), nb::arg("block_size"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
        nb::keep_alive<0, 1>(), "Raises ValueError for a dtype, shape or stride that the kernels don't take.");
  m.def("write", &write, nb::arg("entries"), nb::arg("slots"), nb::arg("keys"), nb::arg("values"),
        "Keys and values [T, K, D] float32 to slots [T]; -1 is skipped; any other slot out of range raises and writes nothing.");
  m.def("attention", &attention, nb::arg("entries"), nb::arg("q"), nb::arg("out"), nb::arg("query_start_loc"), nb::arg("seq_lens"),
        nb::arg("block_table"), nb::arg("rules"), nb::arg("scale"), nb::arg("num_threads"), "q [T, H, D] -> out, over the entries.");
}

}  // namespace kvpact
