// Writing of entries: keys transposed inside a block, values as rows, each rounded once to the stored dtype.
#include "attention.hpp"
#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

int num_not_finite(Vec v) {
  return kLanes - __builtin_popcount(static_cast<unsigned>(lanes_of(less(absolute(v), set1(__builtin_inff())))));
}

// One row of one head. Returns how many of the stored numbers are not finite: a finite number may round to an infinite one.
template <class T>
int64_t write_row(const EntryStorage& entries, int64_t tile, int64_t offset, const float* key, const float* value, bool check) {
  T* keys = static_cast<T*>(entries.keys) + tile + offset;
  T* values = static_cast<T*>(entries.values) + tile + offset * entries.head_dim;
  int64_t bad = 0;
  for (int64_t d = 0; d < entries.head_dim; d += kLanes) {
    T stored[kLanes];
    store(stored, load(key + d));
    for (int i = 0; i < kLanes; i++) keys[(d + i) * entries.block_size] = stored[i];
    store(values + d, load(value + d));
    if (check) bad += num_not_finite(load(stored)) + num_not_finite(load(values + d));
  }
  return bad;
}

template <class T>
void write_rows(const EntryStorage& entries, const float* keys, const float* values, const int64_t* slots, int64_t rows,
                WriteReport* report) {
  for (int64_t row = 0; row < rows; row++) {
    const int64_t slot = slots[row];
    if (slot < 0) continue;
    int64_t bad = 0;
    for (int64_t head = 0; head < entries.num_kv_heads; head++) {
      const int64_t tile = slot / entries.block_size * entries.block_stride + head * entries.head_stride;
      const int64_t from = (row * entries.num_kv_heads + head) * entries.head_dim;
      bad += write_row<T>(entries, tile, slot % entries.block_size, keys + from, values + from, report != nullptr);
    }
    if (!bad) continue;
    if (!report->num_not_finite) report->first_bad_slot = slot;
    report->num_not_finite += bad;
  }
}

}  // namespace

void write_entries(const EntryStorage& entries, const float* keys, const float* values, const int64_t* slots, int64_t rows,
                   WriteReport* report) {
  if (report) *report = {0, -1};
  switch (entries.dtype) {
    case DType::f32: return write_rows<float>(entries, keys, values, slots, rows, report);
    case DType::bf16: return write_rows<bf16_t>(entries, keys, values, slots, rows, report);
    case DType::f16: return write_rows<f16_t>(entries, keys, values, slots, rows, report);
  }
}

}  // namespace kvpact::KVPACT_ISA_NS
