// Attention over blocks, ragged prefill and decode alike, and the writing of entries.
#pragma once

#include "attention_types.hpp"

namespace kvpact::KVPACT_ISA_NS {

// fp32 numbers of scratch that `attend` needs; one per thread, 64-byte aligned, contents don't matter.
int64_t attention_scratch(int64_t rows, int64_t head_dim);

void attend(const AttentionStep& step, const AttentionUnit& unit, float* scratch);

// Folds the unit's num_segments partial results in ascending order and writes `out`: the bits of an unsplit unit.
void combine(const AttentionStep& step, const AttentionUnit& unit, float* scratch);

// Stores keys and values [rows, num_kv_heads, head_dim] fp32 at slots [rows], rounded to nearest even; PAD_SLOT (-1) is skipped.
// report may be null; then nothing is checked. Slots are in range: the caller has checked them.
void write_entries(const EntryStorage& entries, const float* keys, const float* values, const int64_t* slots, int64_t rows,
                   WriteReport* report);

}  // namespace kvpact::KVPACT_ISA_NS
